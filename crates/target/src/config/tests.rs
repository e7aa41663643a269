//! Tests of configurations as text and back.

use std::io::Write;
use std::time::Duration;

use super::*;

fn parse(text: &str) -> Result<Config, ConfigError> {
    let config = Config::from_toml(text, "lunway.toml")?;
    config.check()?;
    Ok(config)
}

fn error(text: &str) -> String {
    parse(text).expect_err(text).to_string()
}

#[test]
fn a_long_value_is_not_repeated_whole() {
    let long = "x".repeat(1 << 20);
    for text in [
        format!("listen = [\"{long}\"]"),
        format!("{long} = 1"),
        format!("[[target]]\nname = \"{long}\""),
        format!(
            "[[target]]\nname = \"iqn.2026-11.com.example:a\"\n[[target.lun]]\nid = 0\ndevice = \"{long}:\""
        ),
    ] {
        let message = parse(&text).expect_err("it is wrong").to_string();
        assert!(message.chars().count() < 3 * PART_MAX && message.contains("more characters"), "{message}");
    }
}

#[test]
fn a_file_that_is_no_configuration_is_not_read() {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(b"listen = []").unwrap();
    file.as_file().set_len(6 << 30).unwrap();
    let message = Config::from_file(file.path()).expect_err("it is too long").to_string();
    assert!(message.ends_with("it has more than 4 MiB"), "{message}");
    let message = Config::from_file(Path::new("/dev/zero")).expect_err("no file").to_string();
    assert!(message.ends_with("it is not a regular file"), "{message}");
}

fn secret_file(secret: &str) -> tempfile::NamedTempFile {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    writeln!(file, "{secret}").unwrap();
    file
}

const TARGET: &str = "[[target]]\nname = \"iqn.2026-11.com.example:a\"\n";

#[test]
fn a_file_with_everything_in_it_is_understood() {
    let (one, two) = (secret_file("sesame open one"), secret_file("sesame open two"));
    let text = format!(
        "listen = [\"127.0.0.1\", \"[::1]:3261\"]\ncores = 2\nheader_digest = \"require\"\n[limits]\nsessions = 7\npoll = \"0s\"\n{TARGET}alias = \"A\"\n\
         [[target.chap]]\nuser = \"u\"\nsecret_file = \"{}\"\n[target.mutual_chap]\nuser = \"t\"\nsecret_file = \"{}\"\n\
         [[target.lun]]\nid = 5\ndevice = \"ram:1G\"\nsector = 4096\nread_only = true\nremovable = true\nserial = \"S1\"\n",
        one.path().display(),
        two.path().display(),
    );
    let config = parse(&text).unwrap();
    assert_eq!(config.listen, ["127.0.0.1:3260".parse().unwrap(), "[::1]:3261".parse().unwrap()]);
    assert_eq!((config.cores, config.limits.sessions, config.limits.poll), (Some(2), 7, Duration::ZERO));
    assert_eq!(config.limits.command_window, Limits::default().command_window);
    assert_eq!((config.header_digest, config.data_digest), (DigestUse::Require, DigestUse::Allow));
    let target = &config.targets[0];
    assert_eq!(
        (target.chap[0].user.as_str(), target.mutual_chap.as_ref().unwrap().user.as_str()),
        ("u", "t")
    );
    let lun = &target.luns[0];
    assert_eq!((lun.id, lun.device.as_written(), lun.sector), (5, "ram:1G", Some(4096)));
    assert!(lun.read_only && lun.removable);
    assert_eq!(lun.serial.as_deref(), Some("S1"));
}

#[test]
fn errors_name_the_file_the_line_and_the_key() {
    assert_eq!(
        error("listen = [\"127.0.0.1\"]\ncores = \"two\"\n"),
        "lunway.toml, line 2, cores: invalid type: string \"two\", expected usize"
    );
    let unknown = error(&format!("{TARGET}colour = \"red\"\n"));
    assert!(
        unknown.starts_with("lunway.toml, line 3, colour: unknown field `colour`, expected one of"),
        "{unknown}"
    );
    let name = error("[[target]]\nname = \"disk\"\n");
    assert!(name.starts_with("lunway.toml, line 2, name: \"disk\" starts neither"), "{name}");
    let address = error("listen = [\"192.0.2.256\"]\n");
    assert!(address.starts_with("lunway.toml, line 1, listen: \"192.0.2.256\" is no address"), "{address}");
}

#[test]
fn a_secret_in_the_file_is_refused_and_not_repeated() {
    let message = error(&format!("{TARGET}[[target.chap]]\nuser = \"u\"\nsecret = \"hunter2hunter2\"\n"));
    assert!(message.contains("line 5, secret: unknown field `secret`"), "{message}");
    assert!(!message.contains("hunter2"), "{message}");
}

#[test]
fn values_that_cannot_be_are_refused_with_place_and_value() {
    let lun = "[[target.lun]]\nid = 0\ndevice = \"ram:1G\"\n";
    for (text, part) in [
        (String::new(), "lunway.toml names no target"),
        (format!("{TARGET}{lun}{lun}"), "target iqn.2026-11.com.example:a: lun: id = \"0\": two LUNs"),
        (format!("{TARGET}{TARGET}"), "name = \"iqn.2026-11.com.example:a\": two targets"),
        (format!("{TARGET}{lun}sector = 513"), "lun 0: sector = \"513\": 512 and 4096"),
        (format!("{TARGET}{lun}serial = \"a b\""), "serial = \"a b\""),
        (
            format!("{TARGET}{}compact = [\"on-idle\"]", lun.replace("ram:1G", "disk.img")),
            "lun 0: compact = \"on-idle\": only a VHDX file is compacted, and disk.img is none",
        ),
        (
            format!("{TARGET}{lun}serial = \"S\"\n{}{lun}serial = \"S\"", TARGET.replace(":a", ":b")),
            "lun 0: serial = \"S\": lun 0 of iqn.2026-11.com.example:a has it, and initiators would take both",
        ),
        (format!("machine_id = \"\"\n{TARGET}"), "machine_id = \"\": 1 to 64"),
        (format!("{TARGET}[[target.lun]]\nid = 20000\ndevice = \"ram:1G\""), "id = \"20000\": 0 to 16383"),
        (format!("listen = []\n{TARGET}"), "listen"),
        (format!("listen = [\"1.2.3.4\", \"1.2.3.4:3260\"]\n{TARGET}"), "it is there twice"),
        (format!("cores = 0\n{TARGET}"), "cores = \"0\""),
        (format!("data_digest = \"maybe\"\n{TARGET}"), "line 1, data_digest: unknown variant `maybe`"),
        (format!("{TARGET}[limits]\nsessions = 0"), "limits: sessions = \"0\""),
        (format!("{TARGET}[limits]\ncommand_window = 5000"), "command_window"),
        (format!("{TARGET}[limits]\nlogin_timeout = \"0s\""), "login_timeout = \"0s\": 100ms to 24h"),
        (format!("{TARGET}[limits]\nnop_interval = \"1ns\""), "nop_interval = \"1ns\": 100ms to 24h"),
        (format!("{TARGET}[limits]\nnop_timeout_s = 99999"), "nop_timeout = \"99999s\": 100ms to 24h"),
        (format!("{TARGET}[limits]\npoll = \"2ms\""), "poll = \"2ms\": 0s to 1ms make sense"),
        (
            format!("{TARGET}[limits]\npoll = \"2us\"\npoll_us = 2"),
            "lunway.toml, line 3: poll_us is the old name of poll, and both are given: remove poll_us",
        ),
        (
            format!("{TARGET}[[target.chap]]\nuser = \"u\"\nsecret_file = \"/nonexistent/secret\""),
            "chap: secret_file = \"/nonexistent/secret\": cannot read it: No such file",
        ),
    ] {
        let message = error(&text);
        assert!(message.contains(part), "{text}\n{message}");
    }
}

#[test]
fn compaction_by_itself_is_for_vhdx_whatever_is_around_it() {
    for device in ["disk.vhdx", "stats:vhdx:disk", "vhdx:iscsi://192.0.2.1/iqn.2026-11.com.example:b/0"] {
        let lun = format!("[[target.lun]]\nid = 0\ndevice = \"{device}\"\ncompact = [\"on-close\"]\n");
        parse(&format!("{TARGET}{lun}")).unwrap().check().unwrap();
    }
}

#[test]
fn the_secrets_of_the_two_directions_must_differ() {
    let (one, same) = (secret_file("sesame open one"), secret_file("sesame open one"));
    let message = error(&format!(
        "{TARGET}[[target.chap]]\nuser = \"u\"\nsecret_file = \"{}\"\n[target.mutual_chap]\nuser = \"t\"\nsecret_file = \"{}\"",
        one.path().display(),
        same.path().display()
    ));
    assert!(message.contains("must differ"), "{message}");
}

#[test]
fn a_backup_by_the_clock_says_when_and_what_cannot_be_is_refused() {
    let keys = "source = \"iqn.2026-11.com.example:a/0\"\ndestination = \"d\"\n";
    let with = |more: &str| format!("state_dir = \"s\"\n{TARGET}[[backup]]\nname = \"db\"\n{keys}{more}\n");
    let good = "key_file = \"k\"\ncredentials_file = \"c\"\nat = [\"2:05\"]\ndays = [\"mon\", \"sun\"]\njitter = \"30m\"\nkeep_last = 7\nlimit = \"1MB/s\"\n\
                freeze = \"f\"\nthaw = \"t\"\ndeadline = \"20s\"";
    let config = parse(&with(good)).unwrap();
    config.check().unwrap();
    let again = Config::from_toml(&config.to_toml().unwrap(), "lunway.toml").unwrap();
    assert_eq!(again.backups, config.backups);
    assert!(config.backups[0].catch_up && config.backups[0].jitter == Some(Duration::from_secs(1800)));
    let located = config.in_folder_of(Path::new("/etc/lunway/lunway.toml"));
    assert_eq!(located.backups[0].destination, Path::new("/etc/lunway/d"));
    assert_eq!(located.backups[0].key_file.as_deref(), Some(Path::new("/etc/lunway/k")));
    assert_eq!(located.backups[0].credentials_file.as_deref(), Some(Path::new("/etc/lunway/c")));
    let far = with("every = \"6h\"").replace("\"d\"", "\"s3://bucket/repo/db\"");
    let far = parse(&far).unwrap().in_folder_of(Path::new("/etc/lunway/lunway.toml"));
    assert_eq!(far.backups[0].destination, Path::new("s3://bucket/repo/db"));
    let every = "every = \"6h\"\n";
    let twice = format!("{every}[[backup]]\nname = \"dc\"\n{keys}{every}");
    for (more, part) in [
        ("", "name = \"db\": say when"),
        ("at = [\"24:00\"]", "line 8, at: `24:00` is not a time of day"),
        ("at = [\"02:00\"]\nevery = \"6h\"", "exclude each other"),
        ("every = \"6h\"\ndays = [\"mon\"]", "days belong to at"),
        ("every = \"6\"", "`6` is not a duration"),
        ("every = \"10ms\"", "every = \"10ms\": 1s to 8784h"),
        ("every = \"6h\"\njitter = \"25h\"", "jitter = \"25h\": 0s to 24h"),
        ("every = \"6h\"\nfreeze = \"f\"", "thaw is missing"),
        ("every = \"6h\"\napplication = true", "it belongs to freeze"),
        ("every = \"6h\"\nlimit = \"fast\"", "limit = \"fast\""),
        ("every = \"6h\"\narea = \"-\"", "area = \"-\""),
        ("every = \"6h\"\nkeep_last = 0", "no rule keeps a point"),
        (&twice, "backup dc: destination = \"d\": backup db has it"),
        (&twice.replace("dc", "db"), "two backups have this name"),
        (&twice.replace("dc", "d c"), "name = \"d c\": 1 to 64 letters"),
    ] {
        let message = error(&with(more));
        assert!(message.contains(part), "{message}");
    }
    let source = with(every).replace("a/0", "a");
    assert!(error(&source).contains("write TARGET/LUN"), "{}", error(&source));
    let no_state = with(every).replace("state_dir = \"s\"\n", "");
    assert!(error(&no_state).contains("set state_dir"), "{}", error(&no_state));
}

const LIMITED: &str =
    "[[target]]\nname = \"iqn.2026-11.com.example:a\"\n[[target.lun]]\nid = 0\ndevice = \"ram:1M\"\n";

#[test]
fn limits_of_io_are_read_and_written_as_they_are() {
    let limits = "iops_limit = 500\nrate_limit = \"100M\"\nlimit_burst = \"2s\"\n";
    let acl = format!("[[target.acl]]\ninitiators = [\"*\"]\n{limits}");
    let config = parse(&format!("{LIMITED}{limits}{acl}")).unwrap();
    let target = &config.targets[0];
    let limit = target.luns[0].io_limit().unwrap();
    assert_eq!((limit.iops.unwrap().get(), limit.bytes.unwrap().get()), (500, 100 << 20));
    assert_eq!((limit.burst, target.acl[0].io_limit()), (Duration::from_secs(2), Some(limit)));
    let written = config.to_toml().unwrap();
    assert!(
        written.contains("rate_limit = \"100M\"") && written.contains("limit_burst = \"2s\""),
        "{written}"
    );
    assert_eq!(Config::from_toml(&written, "lunway.toml").unwrap(), config);
    let one = parse(&format!("{LIMITED}iops_limit = 1\n")).unwrap().targets[0].luns[0].io_limit().unwrap();
    assert_eq!((one.bytes, one.burst), (None, IoLimit::BURST));
    assert_eq!(parse(LIMITED).unwrap().targets[0].luns[0].io_limit(), None);
}

#[test]
fn limits_of_io_that_cannot_be_are_refused() {
    for (line, part) in [
        ("iops_limit = 0", "lun 0: iops_limit = \"0\": at least 1 is possible: leave it out for no limit"),
        ("rate_limit = \"100\"", "`100` is not a rate: write its unit too"),
        ("rate_limit = \"1000B\"", "rate_limit = \"1000B\": at least 4K is possible"),
        ("limit_burst = \"1s\"", "it belongs to iops_limit or rate_limit, which are missing"),
        ("iops_limit = 9\nlimit_burst = \"9ms\"", "10ms to 1h are possible"),
        ("iops_limit = 9\nlimit_burst = \"2h\"", "10ms to 1h are possible"),
    ] {
        let message = error(&format!("{LIMITED}{line}\n"));
        assert!(message.contains(part), "{line}: {message}");
    }
    let rule = error(&format!("{LIMITED}[[target.acl]]\niops_limit = 0\n"));
    assert!(rule.contains("acl: iops_limit"), "{rule}");
}
