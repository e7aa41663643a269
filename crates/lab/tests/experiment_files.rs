//! Files of experiments: what they may say, and what is said of those that are wrong.

use lunway_lab::Action;
use lunway_lab::experiment::{CutKind, Experiment, Incident, Moment, RunWork, SHIPPED};

/// A file with one of everything; the tests change it.
const FILE: &str = r#"
name = "two-lanes"
title = "Two lanes"
about = "Two cables, one disk."
repeat = 5

[[host]]
name = "server"
[[host]]
name = "storage"
luns = ["1=ram:1G", "2=scratch:1G,sector=4096"]
[[switch]]
name = "fabric"
[[cable]]
name = "lane1"
ends = ["server.eth0", "storage.eth0"]
rate = "1Gbit"
mtu = 9000
[[cable]]
name = "lane2"
ends = ["server.eth1", "fabric"]
rate = "100Mbit"
delay = "0s"
[[cable]]
name = "port2"
ends = ["fabric", "storage.eth1"]

[[run]]
test = "D"
control = true
paths = "lane1"
rw = "read"
bs = "4M"
time = "5s"

[[run]]
test = "A"
topology = "2 NICs, mesh"
paths = ["lane1", "lane2 > port2"]
plan = "mesh"
policy = ["adaptive", "round-robin"]
rw = ["read", "randrw"]
lun = 2
time = "10s"
[[run.event]]
at = "30%"
pull = "lane1"
[[run.event]]
at = "2s"
slow = { cable = "lane2", rate = "10Mbit" }

[[run]]
test = "W"
measure = "net"
paths = "lane2 > port2"
window = ["64K", "auto"]
mtu = [1500, 9000]
delay = ["0s", "1ms"]

[[run]]
test = "S"
measure = "compare"
paths = "lane1"
[[run.arm]]
name = "512"
lun = 1
[[run.arm]]
name = "4K"
lun = 2

[[figure]]
name = "read_vs_one_lane"
value = "A[adaptive].read.mb_s / D.read.mb_s"
[[figure]]
name = "of_the_sum"
value = "A[adaptive].read.mb_s / (link.lane1 + min(link.lane2, link.port2))"

[[verdict]]
when = ["read_vs_one_lane >= 1.9", "of_the_sum > 0.9"]
good = "Two lanes carry {read_vs_one_lane} times what one does."
bad = "Two lanes carry only {read_vs_one_lane} times what one does, {of_the_sum %} of their sum."
"#;

fn parse(text: &str) -> Result<Experiment, String> {
    Experiment::parse("two-lanes.toml", text).map_err(|error| error.to_string())
}

/// What is said of the file with `from` replaced by `to`.
fn refused(from: &str, to: &str) -> String {
    assert!(FILE.contains(from), "{from}");
    let sentence = parse(&FILE.replacen(from, to, 1)).expect_err(to);
    assert!(sentence.starts_with("two-lanes.toml"), "{sentence}");
    assert!(!sentence.contains('\n'), "{sentence}");
    sentence
}

#[test]
fn a_file_holds_paths_over_switches_plans_policies_and_events() {
    let experiment = parse(FILE).unwrap();
    assert_eq!(experiment.control().unwrap().test, "D");
    let [control, many, wire, sectors] = &experiment.runs[..] else { panic!("four runs") };
    assert_eq!((control.from.as_str(), control.target.as_str()), ("server", "storage"));
    assert_eq!(control.policies, ["-"]);
    assert_eq!(many.paths[1].to_string(), "lane2 > port2");
    assert_eq!(many.policies, ["adaptive", "round-robin"]);
    assert!(many.plan.is_some());
    let RunWork::Storage(storage) = &many.measure else { panic!("storage") };
    assert_eq!(storage.lun, 2);
    // In order of time, whatever the order in the file.
    assert!(
        matches!(&storage.events[0].incident, Incident::Cable(Action::Slow(slow)) if slow.cable == "lane2")
    );
    assert_eq!(storage.events[1].incident, Incident::Cable(Action::Pull("lane1".into())));
    let RunWork::Wire(wire) = &wire.measure else { panic!("wire") };
    assert_eq!(wire.windows.iter().map(|window| window.bytes).collect::<Vec<_>>(), [Some(65536), None]);
    assert!(matches!(&sectors.measure, RunWork::Compare(comparing) if comparing.arms[1].lun == 2));
}

#[test]
fn several_paths_have_a_policy_and_one_has_none_unless_it_is_asked_for() {
    let policies =
        |from: &str, to: &str| parse(&FILE.replacen(from, to, 1)).unwrap().runs[1].policies.clone();
    let written = "policy = [\"adaptive\", \"round-robin\"]\n";
    let figures = FILE.find("[[figure]]").unwrap();
    let without = FILE[..figures].replacen(written, "", 1);
    assert_eq!(parse(&without).unwrap().runs[1].policies, ["adaptive"]);
    assert_eq!(parse(&without).unwrap().runs[0].policies, ["-"]);
    assert_eq!(policies("\"round-robin\"]", "\"service-time\"]"), ["adaptive", "service-time"]);
    let sentence = refused("\"round-robin\"]", "\"fastest\"]");
    assert!(sentence.contains("there is no policy `fastest`: there is adaptive, failover,"), "{sentence}");
    let sentence = refused("\"round-robin\"]", "\"-\"]");
    assert!(sentence.contains("several paths need a policy"), "{sentence}");
    let sentence = refused("measure = \"compare\"", "measure = \"compare\"\npolicy = [\"-\", \"adaptive\"]");
    assert!(sentence.contains("compared over one policy"), "{sentence}");
}

#[test]
fn paths_have_options_for_the_policies_that_know_them() {
    let text = FILE.replacen("plan = \"mesh\"\n", "", 1);
    let text = text.replacen("\"lane2 > port2\"]", "\"lane2 > port2, reserve, weight=5, throughput=20\"]", 1);
    let path = parse(&text).unwrap().runs[1].paths[1].clone();
    assert_eq!((path.reserve, path.weight, path.throughput), (true, Some(5), Some(20)));
    assert_eq!(path.to_string(), "lane2 > port2");
    let sentence = refused("paths = \"lane1\"", "paths = \"lane1, fast\"");
    assert!(sentence.contains("`fast` is not an option of a path; options are reserve"), "{sentence}");
    let sentence = refused("\"lane2 > port2\"]", "\"lane2 > port2, reserve\"]");
    assert!(sentence.contains("a plan says itself"), "{sentence}");
}

#[test]
fn paths_of_a_team_are_one_way_with_so_many_sessions() {
    let team = |more: &str| {
        let text = FILE[..FILE.find("[[figure]]").unwrap()].replacen("plan = \"mesh\"", more, 1);
        parse(&text.replacen("policy = [\"adaptive\", \"round-robin\"]\n", "", 1))
    };
    let run = team("team = true").unwrap().runs[1].clone();
    assert_eq!((run.team, run.policies), (Some(1), vec!["-".to_owned()]));
    let run = team("team = true\nsessions = 4").unwrap().runs[1].clone();
    assert_eq!((run.team, run.policies), (Some(4), vec!["adaptive".to_owned()]));
    assert!(team("sessions = 4").unwrap_err().contains("only a team"));
    assert!(team("team = true\nplan = \"mesh\"").unwrap_err().contains("a team has no plan"));
    assert!(team("team = true\nsessions = 0").unwrap_err().contains("from 1 to 64"));
}

#[test]
fn a_verdict_is_said_of_each_policy_and_a_figure_knows_the_best_of_the_others() {
    let verdict = "[[verdict]]\neach = \"A\"\nwhen = \"A[*].read.mb_s >= D.read.mb_s\"\n\
                   good = \"{*}: {A[*].read.mb_s}.\"\nbad = \"{*} is slow.\"\n[[verdict]]";
    let experiment = parse(&FILE.replacen("[[verdict]]", verdict, 1)).unwrap();
    let [adaptive, round_robin, both] = &experiment.verdicts[..] else { panic!("two and one") };
    assert_eq!((adaptive.table, round_robin.table, both.table), (0, 0, 1));
    assert_eq!(round_robin.good.names(), ["A[round-robin].read.mb_s"]);
    assert_eq!(round_robin.bad.fill(&|_| None).unwrap(), "round-robin is slow.");
    let sentence = refused("[[verdict]]", &verdict.replace("each = \"A\"", "each = \"Z\""));
    assert!(sentence.contains("key `each`: there is no run `Z`"), "{sentence}");
    let best = "best_other(A[adaptive].read.mb_s) / D.read.mb_s";
    let experiment = parse(&FILE.replacen("A[adaptive].read.mb_s / D.read.mb_s", best, 1)).unwrap();
    assert_eq!(experiment.figures[0].value.names(), ["A[round-robin].read.mb_s", "D.read.mb_s"]);
}

#[test]
fn events_move_with_the_length_of_the_measurement() {
    use std::time::Duration;
    let seconds = Duration::from_secs;
    assert_eq!(Moment::After(seconds(3)).within(seconds(10), seconds(10)), seconds(3));
    assert_eq!(Moment::After(seconds(3)).within(seconds(2), seconds(10)), Duration::from_millis(600));
    assert_eq!(Moment::Share(0.5).within(seconds(4), seconds(10)), seconds(2));
}

#[test]
fn an_unknown_key_is_named_with_its_line_and_table() {
    let sentence = refused("bs = \"4M\"", "blocksize = \"4M\"");
    assert!(sentence.contains("in [[run]]") && sentence.contains("unknown field `blocksize`"), "{sentence}");
    let line = FILE[..FILE.find("bs = ").unwrap()].lines().count() + 1;
    assert!(sentence.contains(&format!("line {line},")), "{sentence}");
    let sentence = refused("rate = \"1Gbit\"", "rate = \"1G\"");
    assert!(sentence.contains("in [[cable]]") && sentence.contains("`1G` is not a rate"), "{sentence}");
    let network = "[[host]]\nname = \"server\"\n";
    let sentence = Experiment::parse("mine.toml", network).unwrap_err().to_string();
    assert!(sentence.starts_with("mine.toml, line 1: missing field `name`"), "{sentence}");
    let sentence = refused("pull = \"lane1\"", "unplug = \"lane1\"");
    assert!(sentence.contains("in [[run.event]]") && sentence.contains("`unplug`"), "{sentence}");
}

#[test]
fn what_is_not_there_is_named_and_what_is_there_too() {
    let sentence = refused("paths = \"lane1\"", "paths = \"lane9\"");
    assert_eq!(
        sentence,
        "two-lanes.toml, [[run]] D, key `paths`: there is no cable `lane9`: there is lane1, lane2, port2"
    );
    let sentence = refused("pull = \"lane1\"", "pull = \"lane9\"");
    assert!(sentence.contains("[[run]] A, key `pull`: there is no cable `lane9`"), "{sentence}");
    let sentence = refused("control = true", "from = \"client\"");
    assert!(sentence.contains("there is no host `client`: there is server, storage"), "{sentence}");
    let sentence = refused("lun = 2\ntime", "lun = 7\ntime");
    assert!(sentence.contains("there is no lun `7`: there is 1, 2"), "{sentence}");
    let sentence = refused("/ D.read.mb_s", "/ D.raed.mb_s");
    assert!(
        sentence.contains("[[figure]] read_vs_one_lane, key `value`: unknown name `D.raed.mb_s`"),
        "{sentence}"
    );
    let sentence = refused("{of_the_sum %}", "{of_all %}");
    assert!(sentence.contains("[[verdict]] 1, key `bad`: unknown name `of_all`"), "{sentence}");
}

#[test]
fn networks_that_cannot_be_built_are_refused_with_the_file() {
    let ring = "[[switch]]\nname = \"other\"\n[[cable]]\nname = \"up\"\nends = [\"fabric\", \"other\"]\n\
                [[cable]]\nname = \"down\"\nends = [\"other\", \"fabric\"]\n\n[[run]]\ntest = \"D\"";
    let sentence = refused("[[run]]\ntest = \"D\"", ring);
    assert!(sentence.contains("closes a ring of switches"), "{sentence}");
}

#[test]
fn what_cannot_be_meant_is_refused() {
    for (from, to, said) in [
        ("measure = \"net\"", "measure = \"net\"\nqd = 3", "it belongs to runs with measure = \"storage\""),
        ("test = \"A\"", "test = \"D\"", "`D` is used twice"),
        ("test = \"A\"", "test = \"A B\"", "cannot be a name"),
        ("repeat = 5", "repeat = 0", "0 is out of range: from 1 to 100"),
        ("at = \"2s\"", "at = \"12s\"", "12s is out of range"),
        ("at = \"30%\"", "at = \"soon\"", "soon is out of range"),
        ("pull = \"lane1\"", "pull = \"lane1\"\nplug = \"lane1\"", "several at once"),
        ("pull = \"lane1\"", "", "none of them"),
        ("pull = \"lane1\"", "delay = { cable = \"lane1\", time = \"1ms\" }", "give it one, be it 0s"),
        ("paths = \"lane1\"", "paths = \"lane2\"", "its last cable ends elsewhere"),
        ("paths = \"lane1\"", "paths = \"lane1 > port2\"", "not of one network"),
        ("bs = \"4M\"", "bs = \"1G\"", "1G is out of range"),
        ("window = [\"64K\", \"auto\"]", "window = \"1\"", "1 is out of range: from 4K to 64M"),
        ("name = \"4K\"\nlun = 2", "name = \"512\"\nlun = 2", "`512` is used twice"),
        ("1=ram:1G", "ram:1G", "NUMBER=DEVICE"),
        ("read_vs_one_lane >= 1.9", "read_vs_one_lane", "compares two figures"),
        ("{read_vs_one_lane} times", "{read_vs_one_lane times", "not closed"),
    ] {
        let sentence = refused(from, to);
        assert!(sentence.contains(said), "{to}: {sentence}");
    }
    // The second run becomes a control too.
    let sentence = refused("plan = \"mesh\"", "control = true");
    assert!(sentence.contains("`D` is the control already"), "{sentence}");
}

#[test]
fn neither_a_name_nor_a_file_is_answered_with_what_there_is() {
    let sentence = Experiment::open("cable-pul").unwrap_err().to_string();
    assert!(SHIPPED.iter().all(|shipped| sentence.contains(shipped.name)), "{sentence}");
    let sentence = Experiment::open("/nonexistent/mine.toml").unwrap_err().to_string();
    assert!(sentence.starts_with("cannot read /nonexistent/mine.toml: "), "{sentence}");
}

#[test]
fn text_that_is_no_file_at_all_is_refused() {
    assert!(parse("").is_err() && parse("[[run]]").is_err() && parse("\u{0}\u{ff}").is_err());
    assert!(parse(&"#".repeat((1 << 20) + 1)).unwrap_err().contains("is not an experiment"));
}

#[test]
fn a_backup_has_a_way_and_may_have_a_cut() {
    let shipped = SHIPPED.iter().find(|shipped| shipped.name == "backup").unwrap();
    let experiment = shipped.experiment().unwrap();
    let backup = |test: &str| {
        let run = experiment.runs.iter().find(|run| run.test == test).unwrap();
        let RunWork::Backup(backup) = &run.measure else { panic!("a backup") };
        backup.clone()
    };
    let cut = backup("full-hole").cut.unwrap();
    assert_eq!((cut.kind, cut.at, cut.time.as_secs()), (CutKind::BlackHole, 0.85, 5));
    assert_eq!((backup("dynamic-untuned").queue_depth, backup("increment").changed), (1, 0.01));
    // As `lab list` and the book say.
    assert!(experiment.cost().as_secs() < 420, "{:?}", experiment.cost());
    for (from, to, said) in [
        ("way = \"copy-dynamic\"", "way = \"copied\"", "unknown variant `copied`"),
        ("way = \"copy-dynamic\"\n", "", "key `way`: it is missing"),
        ("size = \"128M\"", "size = \"1M\"", "1M is out of range: from 4M"),
        ("size = \"128M\"", "size = \"5000K\"", "whole mebibytes"),
        ("at = \"85%\"", "at = \"50\"", "50 is out of range: a share such as 40%"),
        ("at = \"85%\"", "at = \"NaN%\"", "NaN% is out of range"),
        ("time = \"5s\"", "time = \"6h\"", "6h is out of range"),
        ("changed = \"1%\"", "changed = \"101%\"", "101% is out of range"),
        ("changed = \"1%\"", "qd = 4", "key `qd`: only a copy has it"),
        ("qd = 1\n", "qd = 1\nchanged = \"1%\"\n", "only an increment is made of changes"),
        ("qd = 1\n", "qd = 1\nrw = \"read\"\n", "it belongs to runs with measure = \"storage\""),
        ("qd = 1\n", "qd = 1\ntime = \"5s\"\n", "it belongs to runs with measure = \"storage\""),
    ] {
        assert!(shipped.text.contains(from), "{from}");
        let error =
            Experiment::parse("backup.toml", &shipped.text.replacen(from, to, 1)).unwrap_err().to_string();
        assert!(error.contains(said), "{to}: {error}");
    }
    let sentence = refused("rw = \"read\"", "way = \"full\"");
    assert!(sentence.contains("it belongs to runs with measure = \"backup\""), "{sentence}");
}
