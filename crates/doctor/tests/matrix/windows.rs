//! A model of Windows: what Microsoft's reference says that the cmdlets of fixes and undos change, done to facts.
//!
//! No test runs on Windows. The model shows that the printed commands name the settings that their rules judge, and
//! that an undo names all that its fix has changed, with the values of before.

use std::collections::BTreeSet;

use lunway_doctor::facts::{Windows, WindowsPort, WindowsSession};
use lunway_doctor::{Facts, Verdict, rule};

use crate::healthy::{healthy, known};
use crate::plants::value;

/// A machine, and the registry key that `$key` or the adapter that `$power` names.
struct Model<'a> {
    windows: &'a mut Windows,
    key: String,
    /// The object in `$power` says that the adapter may be switched off; it takes effect when it is set.
    power: bool,
}

/// Words of a command, without their quotes.
fn words(command: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    let mut quoted = false;
    for c in command.chars() {
        match c {
            '\'' => quoted = !quoted,
            ' ' if !quoted => words.push(String::new()),
            _ => words.last_mut().unwrap().push(c),
        }
    }
    words.retain(|word| !word.is_empty());
    words
}

impl Model<'_> {
    fn port(&mut self, name: &str) -> &mut WindowsPort {
        value(&mut self.windows.ports).iter_mut().find(|port| port.name == name).unwrap()
    }

    fn session(&mut self, identifier: &str) -> &mut WindowsSession {
        let mut sessions = value(&mut self.windows.sessions).iter_mut();
        sessions.find(|session| session.identifier == identifier).unwrap()
    }

    /// Sets a value of `$key`; `None`: it is not there, and its default counts.
    fn registry(&mut self, name: &str, set: Option<u64>) {
        let key = self.key.clone();
        match name {
            "TcpAckFrequency" => self.port(&key).tcp_ack_frequency = known(set.unwrap_or(2)),
            "TCPNoDelay" => self.port(&key).tcp_no_delay = known(set.unwrap_or(0)),
            "TimeOutValue" => self.windows.disk_timeout = known(set.unwrap()),
            "LinkDownTime" | "MaxRequestHoldTime" => {
                assert_eq!(key, "initiator");
                value(&mut self.windows.initiator).insert(name.to_owned(), set.unwrap());
            }
            other => panic!("{other} of {key} is not modelled"),
        }
    }

    fn run(&mut self, command: &str) {
        let words = words(command);
        let after = |option: &str| {
            let place = words.iter().position(|word| word == option)?;
            words.get(place + 1).map(|word| word.trim_end_matches(')').to_owned())
        };
        let named = || after("-Name").unwrap();
        match words[0].as_str() {
            "$key" if command.contains("4D36E97B-E325-11CE-BFC1-08002BE10318") => {
                self.key = "initiator".to_owned();
            }
            "$power" if words[1..] == ["|", "Set-NetAdapterPowerManagement"] => {
                let (name, on) = (self.key.clone(), self.power);
                self.port(&name).power_saving = known(on);
            }
            "$key" | "$power" => self.key = named().trim_end_matches(").InterfaceGuid").to_owned(),
            "$power.AllowComputerToTurnOffDevice" => {
                self.power = words[2] == "Enabled";
            }
            "Set-ItemProperty" => self.registry(&words[2], Some(words[3].parse().unwrap())),
            "Remove-ItemProperty" => self.registry(&words[2], None),
            "Set-MPIOSetting" => {
                for option in words[1..].chunks(2) {
                    let (name, number) = match option[0].trim_start_matches("-New") {
                        "PathVerificationState" => ("PathVerifyEnabled", u64::from(option[1] == "Enabled")),
                        name => (name, option[1].parse().unwrap()),
                    };
                    let before = value(&mut self.windows.mpio).insert(name.to_owned(), number);
                    assert!(before.is_some(), "{name} is not a timer of MPIO");
                }
            }
            "Enable-MSDSMAutomaticClaim" => self.windows.claims_iscsi = known(true),
            "Disable-MSDSMAutomaticClaim" => self.windows.claims_iscsi = known(false),
            "Set-MSDSMGlobalDefaultLoadBalancePolicy" => {
                self.windows.policy = known(after("-Policy").unwrap());
            }
            "Set-DnsClient" => {
                let on = after("-RegisterThisConnectionsAddress").unwrap() == "$true";
                self.port(&after("-InterfaceAlias").unwrap()).registers_dns = known(on);
            }
            "Enable-NetAdapterBinding" => self.port(&named()).ipv6 = known(true),
            "Disable-NetAdapterBinding" => self.port(&named()).ipv6 = known(false),
            "Get-CimInstance" => {
                let name = named().trim_end_matches(").InterfaceIndex").to_owned();
                let option = words.last().unwrap().trim_start_matches("[uint32]").trim_end_matches('}');
                let option: u64 = option.parse().unwrap();
                let port = self.port(&name);
                (port.netbios, port.netbios_option) = (known(option != 2), Some(option));
            }
            "Set-NetAdapterAdvancedProperty" => {
                let frame: u64 = after("-RegistryValue").unwrap().parse().unwrap();
                self.port(&named()).mtu = known(frame - 14);
            }
            "Connect-IscsiTarget" => {
                let session = WindowsSession {
                    identifier: "new".into(),
                    target: after("-NodeAddress").unwrap(),
                    local: after("-InitiatorPortalAddress").unwrap_or_else(|| "0.0.0.0".to_owned()),
                    portal: after("-TargetPortalAddress").unwrap(),
                    persistent: after("-IsPersistent").unwrap() == "$true",
                    bound: after("-InitiatorPortalAddress").is_some(),
                };
                value(&mut self.windows.sessions).push(session);
            }
            "Register-IscsiSession" => self.session(&after("-SessionIdentifier").unwrap()).persistent = true,
            "Unregister-IscsiSession" => {
                self.session(&after("-SessionIdentifier").unwrap()).persistent = false;
            }
            "Disconnect-IscsiTarget" => {
                let identifier = after("-SessionIdentifier").unwrap();
                value(&mut self.windows.sessions).retain(|session| session.identifier != identifier);
            }
            other => panic!("{other} is not modelled"),
        }
    }
}

/// Runs what is printed for a rule.
fn run(facts: &mut Facts, commands: &str) {
    let commands = commands.split("    #").next().unwrap();
    let mut model = Model { windows: facts.windows.as_mut().unwrap(), key: String::new(), power: false };
    for command in commands.split("; ") {
        model.run(command.trim());
    }
}

/// The worst diagnosis of a rule: its verdict, its fix, its undo.
fn worst(facts: &Facts, id: &str) -> (Verdict, String, String) {
    let found = rule(id).unwrap().diagnoses(facts).into_iter().max_by_key(|found| found.verdict).unwrap();
    (found.verdict, found.finding.remedy, found.undo)
}

fn port(facts: &mut Facts) -> &mut WindowsPort {
    &mut value(&mut facts.windows.as_mut().unwrap().ports)[0]
}

fn mpio(facts: &mut Facts, name: &str, number: u64) {
    value(&mut facts.windows.as_mut().unwrap().mpio).insert(name.to_owned(), number);
}

type Plant = fn(&mut Facts);

/// Faults with different values beside them, which an undo has to bring back.
const FAULTS: &[(&str, Plant)] = &[
    ("windows-verify", |facts| mpio(facts, "PathVerifyEnabled", 0)),
    ("windows-verify", |facts| mpio(facts, "PathVerificationPeriod", 60)),
    ("windows-remove", |facts| mpio(facts, "PDORemovePeriod", 10)),
    ("windows-retry", |facts| mpio(facts, "RetryCount", 0)),
    ("windows-retry", |facts| mpio(facts, "RetryInterval", 60)),
    ("windows-claim", |facts| facts.windows.as_mut().unwrap().claims_iscsi = known(false)),
    ("windows-policy", |facts| facts.windows.as_mut().unwrap().policy = known("None".into())),
    ("windows-disk-timeout", |facts| facts.windows.as_mut().unwrap().disk_timeout = known(30)),
    ("windows-initiator", |facts| {
        let values = value(&mut facts.windows.as_mut().unwrap().initiator);
        values.extend([("LinkDownTime".to_owned(), 60), ("MaxRequestHoldTime".to_owned(), 120)]);
    }),
    ("windows-ack", |facts| port(facts).tcp_ack_frequency = known(2)),
    ("windows-ack", |facts| port(facts).tcp_ack_frequency = known(5)),
    ("windows-ack", |facts| port(facts).tcp_no_delay = known(0)),
    ("windows-power", |facts| port(facts).power_saving = known(true)),
    ("windows-dns", |facts| port(facts).registers_dns = known(true)),
    ("windows-bindings", |facts| {
        (port(facts).netbios, port(facts).netbios_option) = (known(true), Some(1));
        port(facts).ipv6 = known(true);
    }),
    ("windows-bindings", |facts| (port(facts).netbios, port(facts).netbios_option) = (known(true), Some(0))),
    ("windows-mtu", |facts| port(facts).mtu = known(1500)),
    ("windows-sessions", |facts| value(&mut facts.windows.as_mut().unwrap().sessions)[0].persistent = false),
];

#[test]
fn fixes_and_undos_of_windows_do_what_the_reference_says_of_their_cmdlets() {
    for (id, fault) in FAULTS {
        let mut facts = healthy();
        fault(&mut facts);
        let planted = facts.clone();
        let (verdict, fix, undo) = worst(&facts, id);
        assert!(verdict >= Verdict::Warn, "{id}");
        run(&mut facts, &fix);
        assert_eq!(worst(&facts, id).0, Verdict::Ok, "{id}: {fix}");
        run(&mut facts, &undo);
        assert_eq!(facts.windows, planted.windows, "{id}: {undo}");
    }
}

#[test]
fn a_session_that_was_not_bound_is_told_in_each_form_and_another_one_takes_its_place() {
    let faults: [Plant; 3] = [
        |facts| value(&mut facts.windows.as_mut().unwrap().sessions)[0].bound = false,
        |facts| value(&mut facts.windows.as_mut().unwrap().sessions)[0].local = "0.0.0.0".into(),
        |facts| value(&mut facts.windows.as_mut().unwrap().sessions)[0].local = "10.0.1.2".into(),
    ];
    for fault in faults {
        let mut facts = healthy();
        fault(&mut facts);
        let (verdict, fix, undo) = worst(&facts, "windows-sessions");
        assert_eq!(verdict, Verdict::Warn);
        let fix = fix.replace("ADDRESS", "10.0.1.7");
        run(&mut facts, &fix);
        assert_eq!(worst(&facts, "windows-sessions").0, Verdict::Ok, "{fix}");
        assert_eq!(value(&mut facts.windows.as_mut().unwrap().sessions).len(), 2, "{fix}");
        // The comment of the undo says how the new session is ended, whose identifier Windows chooses.
        run(&mut facts, &undo);
        let sessions = value(&mut facts.windows.as_mut().unwrap().sessions);
        sessions.retain(|session| session.local != "10.0.1.7");
        assert_eq!(
            (worst(&facts, "windows-sessions").0, undo.contains("    # then ")),
            (Verdict::Warn, true),
            "{undo}"
        );
    }
}

#[test]
fn ports_of_a_windows_machine_whose_sessions_are_not_seen_are_unknown() {
    let mut facts = healthy();
    value(&mut facts.windows.as_mut().unwrap().ports).clear();
    assert_eq!(worst(&facts, "windows-ack").0, Verdict::Unknown, "its sessions leave by some port");
    facts.windows.as_mut().unwrap().sessions = lunway_doctor::Seen::unseen("no service");
    assert_eq!(worst(&facts, "windows-power").0, Verdict::Unknown);
    facts.windows.as_mut().unwrap().sessions = known(Vec::new());
    assert_eq!(rule("windows-ack").unwrap().diagnoses(&facts), [], "a machine without sessions");
}

#[test]
fn lists_as_windows_powershell_5_1_writes_them_are_read() {
    let facts = healthy();
    let mut odd = serde_json::to_value(&facts).unwrap();
    for list in ["ports", "sessions"] {
        let items = odd["windows"][list].take();
        let count = items.as_array().unwrap().len();
        odd["windows"][list] = serde_json::json!({"value": items, "Count": count});
    }
    assert_eq!(Facts::parse(&odd.to_string()).unwrap(), facts);
}

/// The script's keys are the names of facts, each of them.
#[test]
fn the_script_for_windows_writes_each_fact_by_its_name() {
    let script = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../contrib/doctor-windows.ps1");
    let script = std::fs::read_to_string(script).unwrap();
    let is_name = |word: &&str| {
        word.starts_with(|c: char| c.is_ascii_lowercase())
            && word.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
    };
    let key = |line: &str| {
        line.trim().split_once(" = ").map(|(key, _)| key.trim()).filter(is_name).map(str::to_owned)
    };
    let written: BTreeSet<String> = script.lines().filter_map(key).collect();
    let windows = serde_json::to_value(healthy().windows).unwrap();
    let keys = |value: &serde_json::Value| value.as_object().unwrap().keys().cloned().collect::<Vec<_>>();
    let facts = [&windows, &windows["ports"][0], &windows["sessions"][0]].into_iter().flat_map(keys);
    let facts: BTreeSet<String> = facts.chain(["schema".into(), "windows".into()]).collect();
    assert_eq!(written, facts);
}
