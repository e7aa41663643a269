//! Fixes of cards, by ethtool: those that a virtual card takes are run, of the others ethtool parses the commands.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};

use crate::support::{PATIENCE, finish, lunway};
use crate::{Namespace, doctor, findings, verdicts};

/// Two taps, the only cards without hardware whose speed, duplex, negotiation and offloads ethtool sets and reports.
const TAPS: &str = "for p in card1 card2; do ip tuntap add $p mode tap && ip link set $p up &&
    ethtool -s $p speed 10000 duplex full autoneg on; done
    ip address add 10.8.1.1/24 dev card1 && ip address add 10.8.2.1/24 dev card2";

/// Rules that are broken by a command at the second tap.
const TAKEN: [(&str, &str); 4] = [
    ("port-speed", "ethtool -s card2 speed 100 duplex full autoneg on"),
    ("port-duplex", "ethtool -s card2 duplex half autoneg on"),
    ("port-negotiation", "ethtool -s card2 autoneg off"),
    ("port-offload", "ethtool -K card2 gso off gro off"),
];

/// Rules whose fixes no tap takes, and what is put in the place of the facts of the second one.
const PARSED: [(&str, &str); 5] = [
    ("port-pause", r#"{ "rx_pause": false }"#),
    ("port-energy", r#"{ "eee": true }"#),
    ("port-coalesce", r#"{ "coalescing": { "adaptive": false, "can_adapt": true, "rx_us": 125 } }"#),
    ("port-coalesce", r#"{ "coalescing": { "adaptive": false, "can_adapt": false, "rx_us": 125 } }"#),
    ("port-ring", r#"{ "rx_ring": { "now": 256, "max": 4096 }, "tx_ring": { "now": 256, "max": 4096 } }"#),
];

/// A namespace with two taps; `None`: the machine cannot have them, and it was reported.
fn taps() -> Option<Namespace> {
    lunway_foreign::program("ethtool")?;
    let Some(namespace) = Namespace::new() else {
        lunway_foreign::machine_lacks("network namespaces, or ip and nsenter");
        return None;
    };
    let made = namespace.run(TAPS);
    if !made.status.success() {
        lunway_foreign::machine_lacks(&format!("taps in a network namespace: {made:?}"));
        return None;
    }
    Some(namespace)
}

/// What the rules about the taps find, which are judged as cards; `planted` are facts of the second one.
fn found(namespace: &Namespace, folder: &Path, planted: &Value) -> Vec<Value> {
    let mut facts = lunway(&["doctor", "--facts", "--port", "card1", "--port", "card2"]);
    facts.env("XDG_STATE_HOME", folder);
    let output = finish(namespace.entered(&facts), PATIENCE);
    let mut facts: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{output:?}"));
    let ports = facts["ports"].as_array_mut().unwrap();
    for port in ports.iter_mut().filter(|port| port["name"].as_str().unwrap().starts_with("card")) {
        (port["physical"], port["kind"]) = (json!(true), json!(""));
        if port["name"] == "card2" {
            port.as_object_mut().unwrap().extend(planted.as_object().unwrap().clone());
        }
    }
    let path = folder.join("facts.json");
    fs::write(&path, facts.to_string()).unwrap();
    findings(&finish(doctor(&["--from", path.to_str().unwrap()], folder), PATIENCE))
}

/// Rules about settings of cards that are broken.
fn broken(found: &[Value]) -> Vec<&str> {
    let of_card = |id: &str| TAKEN.iter().chain(&PARSED).any(|(rule, _)| *rule == id);
    let alarms = found.iter().filter(|one| one["verdict"] == "warn" || one["verdict"] == "bad");
    alarms.map(|one| one["id"].as_str().unwrap()).filter(|id| of_card(id)).collect()
}

/// The fix and the undo that are printed for a rule.
fn commands(found: &[Value], rule: &str) -> [String; 2] {
    let one = found.iter().find(|one| one["id"] == rule && one["where"] == "card2").unwrap();
    ["do", "undo"].map(|key| one[key].as_str().unwrap().to_owned())
}

#[test]
fn fixes_that_a_virtual_card_takes_turn_their_verdict_and_undos_restore_the_setting() {
    let Some(namespace) = taps() else { return };
    let folder = tempfile::tempdir().unwrap();
    let nothing = json!({});
    let look = || found(&namespace, folder.path(), &nothing);
    let healthy = look();
    // Segmentation by a tap waits for a program that takes long packets: nothing is switched off.
    assert_eq!(broken(&healthy), Vec::<&str>::new(), "{healthy:#?}");
    for (rule, _) in TAKEN {
        assert_eq!(verdicts(&healthy, rule), ["ok", "ok"], "{rule}");
    }
    let set = || namespace.run("ethtool card2 | grep -E 'Speed|Duplex|Auto'; ethtool -k card2").stdout;
    for (rule, plant) in TAKEN {
        let planted = namespace.run(plant);
        assert!(planted.status.success(), "{rule}: {planted:?}");
        let before = set();
        let told = look();
        assert_eq!(broken(&told), [rule], "{plant}");
        let [fix, undo] = commands(&told, rule);
        let fixed = namespace.run(&fix);
        assert!(fixed.status.success(), "{rule}: {fix}: {fixed:?}");
        assert_eq!(broken(&look()), Vec::<&str>::new(), "{rule}: {fix}");
        let undone = namespace.run(&undo);
        assert!(undone.status.success(), "{rule}: {undo}: {undone:?}");
        assert_eq!(String::from_utf8_lossy(&set()), String::from_utf8_lossy(&before), "{rule}: {undo}");
        assert_eq!(broken(&look()), [rule], "{rule}: {undo}");
        assert!(namespace.run(&fix).status.success(), "{rule}: {fix}");
    }
}

#[test]
fn ethtool_parses_fixes_that_no_card_of_a_test_takes() {
    let Some(namespace) = taps() else { return };
    let folder = tempfile::tempdir().unwrap();
    /// What the kernel says of a setting that a card does not have, and ethtool of a command that it does not know.
    const UNSUPPORTED: [&str; 2] = ["not supported", "unsupported parameter"];
    let refused = |command: &str| {
        let output = namespace.run(command);
        assert!(!output.status.success(), "{command}: {output:?}");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        UNSUPPORTED.iter().any(|word| said.contains(word)).then_some(()).ok_or(said)
    };
    for wrong in
        ["ethtool -G card2 rxx 4096", "ethtool -A card2 rx perhaps", "ethtool --set-eee card2 eeee off"]
    {
        assert!(refused(wrong).is_err(), "{wrong} is taken for a command");
    }
    for (rule, planted) in PARSED {
        let told = found(&namespace, folder.path(), &serde_json::from_str(planted).unwrap());
        assert_eq!(broken(&told), [rule], "{planted}");
        for command in commands(&told, rule) {
            assert!(command.starts_with("ethtool "), "{rule}: {command}");
            refused(&command).unwrap_or_else(|said| panic!("{rule}: {command}: {said}"));
        }
    }
}
