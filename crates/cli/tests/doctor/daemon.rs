//! Rules about a daemon, broken and fixed by commands on one that serves; and what an ordinary user is told.

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use serde_json::Value;

use crate::support::{PATIENCE, finish, lunway, until};
use crate::{doctor, findings, verdicts};

const OPEN: &str = "iqn.2026-11.com.example:open";
const CLOSED: &str = "iqn.2026-11.com.example:closed";

/// A rule, the command that breaks it, and, where its fix is for people, the commands that carry it out and back.
type Broken = (&'static str, &'static str, Option<(&'static str, &'static str)>);

const BROKEN: [Broken; 6] = [
    (
        "target-open",
        "lunway acl remove iqn.2026-11.com.example:open host; lunway target set iqn.2026-11.com.example:open --open",
        None,
    ),
    ("target-closed", "lunway acl remove iqn.2026-11.com.example:closed host", None),
    ("portal-idle", "lunway portal add 192.0.2.1:3260", None),
    (
        "target-name",
        "lunway target add iqn.2026-11.com.example:odd_name; \
         lunway acl add iqn.2026-11.com.example:odd_name host --initiator iqn.2026-11.com.example:host",
        // It has no LUN to move.
        Some((
            "lunway target add iqn.2026-11.com.example:moved; \
             lunway acl add iqn.2026-11.com.example:moved host --initiator iqn.2026-11.com.example:host; \
             lunway target remove iqn.2026-11.com.example:odd_name",
            "lunway target remove iqn.2026-11.com.example:moved; lunway target add iqn.2026-11.com.example:odd_name; \
             lunway acl add iqn.2026-11.com.example:odd_name host --initiator iqn.2026-11.com.example:host",
        )),
    ),
    (
        "lun-lost-file",
        "rm disk.img",
        // PORTAL is known to the test.
        Some((
            "lunway copy iscsi://PORTAL/iqn.2026-11.com.example:open/0?initiator=iqn.2026-11.com.example:host new.img; \
             mv new.img disk.img; lunway lun remove iqn.2026-11.com.example:open 0 --force; \
             lunway lun add iqn.2026-11.com.example:open 0 disk.img; cmp disk.img was.img",
            "",
        )),
    ),
    (
        "target-secret",
        "printf short > secret; chmod 644 secret; lunway reload",
        // Its fix is a clause: what the secret is no command should choose, and no undo knows the old one.
        Some(("printf fourteen-bytes > secret; chmod 600 secret; lunway reload", "")),
    ),
];

/// A daemon in a folder of its own, killed at the end.
struct Daemon {
    child: std::process::Child,
    folder: tempfile::TempDir,
    /// Where it listens.
    portal: String,
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Daemon {
    fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let secret = folder.path().join("secret");
        fs::write(&secret, "fourteen-bytes").unwrap();
        fs::set_permissions(&secret, fs::Permissions::from_mode(0o600)).unwrap();
        for name in ["disk.img", "was.img"] {
            fs::write(folder.path().join(name), vec![7; 1 << 20]).unwrap();
        }
        let configuration = format!(
            "listen = [\"127.0.0.1:0\"]\n[api]\nsocket = \"socket\"\n\
             [[target]]\nname = \"{OPEN}\"\n[[target.acl]]\nname = \"host\"\ninitiators = [\"iqn.2026-11.com.example:host\"]\n\
             [[target.lun]]\nid = 0\ndevice = \"disk.img\"\n\
             [[target]]\nname = \"{CLOSED}\"\n[[target.acl]]\nname = \"host\"\ninitiators = [\"iqn.2026-11.com.example:host\"]\n\
             [[target.chap]]\nuser = \"host\"\nsecret_file = \"secret\"\n"
        );
        let file = folder.path().join("lunway.toml");
        fs::write(&file, configuration).unwrap();
        let mut command = lunway(&["serve", "-c", file.to_str().unwrap()]);
        let mut child = command.current_dir(&folder).stdout(Stdio::piped()).spawn().unwrap();
        let mut said = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut said).unwrap();
        let portal = said.trim().strip_prefix("listening on ").unwrap().to_owned();
        let socket = folder.path().join("socket");
        until(|| socket.exists());
        Self { child, folder, portal }
    }

    fn socket(&self) -> String {
        self.folder.path().join("socket").to_str().unwrap().to_owned()
    }

    fn run(&self, script: &str) -> Output {
        let own = lunway::<&str>(&[]);
        let program = Path::new(own.get_program()).parent().unwrap();
        let mut command = Command::new("sh");
        command.args(["-ec", script]).current_dir(&self.folder).env("LUNWAY_SOCKET", self.socket());
        command.env("PATH", format!("{}:{}", program.display(), std::env::var("PATH").unwrap_or_default()));
        for (name, value) in own.get_envs().filter(|(name, _)| *name != "LUNWAY_SOCKET") {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        finish(command, PATIENCE)
    }

    fn findings(&self) -> Vec<Value> {
        findings(&finish(doctor(&["--socket", &self.socket()], self.folder.path()), PATIENCE))
    }

    /// Of the rules that are broken here, those with an alarm.
    fn broken(&self) -> Vec<String> {
        let found = self.findings();
        let is_here = |id: &Value| BROKEN.iter().any(|(rule, ..)| id == rule);
        let alarms = found.iter().filter(|one| is_here(&one["id"]) && one["verdict"] != "ok");
        let mut ids: Vec<String> = alarms.map(|one| one["id"].as_str().unwrap().to_owned()).collect();
        ids.dedup();
        ids
    }
}

#[test]
fn commands_of_lunway_turn_the_verdicts_on_a_daemon_and_turn_them_back() {
    let daemon = Daemon::start();
    assert_eq!(daemon.broken(), Vec::<String>::new(), "a healthy daemon: {:#?}", daemon.findings());
    for (rule, plant, by_people) in BROKEN {
        let planted = daemon.run(plant);
        assert!(planted.status.success(), "{rule}: {planted:?}");
        // The daemon looks at its files once in ten seconds.
        until(|| !daemon.broken().is_empty());
        assert_eq!(daemon.broken(), [rule], "{plant}");
        let found = daemon.findings();
        let finding = found.iter().find(|one| one["id"] == rule && one["verdict"] != "ok").unwrap();
        // What only its administrator knows.
        let filled = |text: &str| text.replace("NAME", "host").replace("IQN", "iqn.2026-11.com.example:host");
        let (fix, undo) = match by_people {
            Some((fix, undo)) => (fix.replace("PORTAL", &daemon.portal), undo.to_owned()),
            None => {
                // Of "this, or: that" the command of lunway's own.
                let own = |key: &str| {
                    let text = finding[key].as_str().unwrap();
                    filled(text.split_once("# or: ").map_or(text, |(_, own)| own))
                };
                (own("do"), own("undo"))
            }
        };
        let fixed = daemon.run(&fix);
        assert!(fixed.status.success(), "{rule}: {fix}: {fixed:?}");
        assert_eq!(daemon.broken(), Vec::<String>::new(), "{rule}: {fix}");
        if !undo.is_empty() {
            let undone = daemon.run(&undo);
            assert!(undone.status.success(), "{rule}: {undo}: {undone:?}");
            assert_eq!(daemon.broken(), [rule], "{rule}: {undo}");
            assert!(daemon.run(&fix).status.success(), "{rule}: {fix}");
        }
    }
}

#[test]
fn an_ordinary_user_is_told_what_takes_root_and_nothing_of_it_is_ok() {
    if !rustix::process::geteuid().is_root() {
        return lunway_foreign::machine_lacks("root, to become an ordinary user");
    }
    // A copy of a machine whose secrets and records are root's alone.
    let folder = tempfile::tempdir().unwrap();
    let copy = folder.path().join("copy");
    let put = |path: &str, text: &str, mode: u32| {
        let path = copy.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
    };
    put("etc/iscsi/initiatorname.iscsi", "InitiatorName=iqn.2026-11.com.example:host\n", 0o644);
    put("etc/iscsi/iscsid.conf", "node.session.auth.password = short\n", 0o600);
    put("etc/iscsi/nodes/t/10.0.0.1,3260,1/default", "node.startup = manual\n", 0o600);
    fs::set_permissions(copy.join("etc/iscsi/nodes"), fs::Permissions::from_mode(0o700)).unwrap();
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
    // The program stands in a folder that others may not enter, perhaps.
    let program = folder.path().join("lunway");
    fs::copy(env!("CARGO_BIN_EXE_lunway"), &program).unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    let state = folder.path().join("state");
    fs::create_dir(&state).unwrap();
    fs::set_permissions(&state, fs::Permissions::from_mode(0o777)).unwrap();
    let run = |root: bool, arguments: &[&str]| {
        let mut command = Command::new("setpriv");
        if !root {
            command.args(["--reuid=65534", "--regid=65534", "--clear-groups"]);
        }
        command.arg(&program).args(["doctor", "--json"]).args(arguments).env("XDG_STATE_HOME", &state);
        findings(&finish(command, PATIENCE))
    };
    let arguments = ["--root", copy.to_str().unwrap()];
    let (user, root) = (run(false, &arguments), run(true, &arguments));
    assert_eq!(verdicts(&root, "chap-length"), ["warn"], "{root:#?}");
    for rule in ["chap-length", "chap-files", "chap-mutual", "initiator-depth"] {
        assert_eq!(verdicts(&user, rule), ["unknown"], "{rule}: {user:#?}");
    }
    let told = |found: &[Value]| {
        found.iter().filter(|one| one["what"].as_str().unwrap().contains("takes root")).count()
    };
    assert!(told(&user) >= 4 && told(&root) == 0, "{user:#?}");
    // This machine itself: what root may see and the user may not is unknown, with a reason, and never ok.
    let (user, root) = (run(false, &[]), run(true, &[]));
    let verdict = |found: &[Value], rule: &Value, place: &Value| {
        found
            .iter()
            .find(|one| one["id"] == *rule && one["where"] == *place)
            .map(|one| one["verdict"].clone())
    };
    for one in user.iter().filter(|one| one["verdict"] == "ok") {
        let by_root = verdict(&root, &one["id"], &one["where"]);
        assert!(by_root.as_ref().is_none_or(|verdict| verdict == "ok"), "{one} is {by_root:?} for root");
    }
    assert!(user.iter().any(|one| one["verdict"] == "ok"), "{user:#?}");
}
