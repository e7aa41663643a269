//! `lunway serve` and `lunway attach` under a supervisor: what they say, when, in what form they log, and how they are
//! protected.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod support;

use std::io::{BufRead, BufReader, Read};
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use support::{PATIENCE, Served, lunway, wait};

#[test]
fn systemd_hears_when_the_daemon_serves_and_when_it_ends() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("notify");
    let socket = UnixDatagram::bind(&path).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    let heard = || {
        let mut buffer = [0; 4096];
        let len = socket.recv(&mut buffer).unwrap();
        String::from_utf8_lossy(&buffer[..len]).into_owned()
    };
    let mut command =
        lunway(&["serve", "--listen", "127.0.0.1:0", "--lun", "0=ram:1M", "--log-format", "json", "-v"]);
    command.env("NOTIFY_SOCKET", &path).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let ready = heard();
    assert!(
        ready.contains("READY=1") && ready.contains("STATUS=serving 1 LUN of 1 target on 1 portal"),
        "{ready}"
    );
    let process = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(process, rustix::process::Signal::TERM).unwrap();
    let stopping = heard();
    assert!(stopping.contains("STOPPING=1"), "{stopping}");
    assert!(wait(&mut child, PATIENCE).unwrap().success());
    let mut log = String::new();
    child.stderr.take().unwrap().read_to_string(&mut log).unwrap();
    let lines: Vec<serde_json::Value> = log.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let serving = lines.iter().find(|line| line["message"] == "serving").unwrap();
    assert_eq!((serving["level"].as_str(), serving["device"].as_str()), (Some("INFO"), Some("ram:1M")));
}

/// It was shut down with the daemon, and with it systemd's: initiators were refused until the socket unit was
/// restarted.
#[test]
fn a_socket_from_systemd_takes_connections_when_the_daemon_has_ended() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    // As `sd_listen_fds(3)` has it: descriptor 3, and the process that it is for.
    let inherited = listener.try_clone().unwrap();
    rustix::io::fcntl_setfd(&inherited, rustix::io::FdFlags::empty()).unwrap();
    let program = lunway(&["serve", "--listen", &address.to_string(), "--lun", "0=ram:1M"]);
    // dash knows descriptors of one digit alone.
    let mut command = Command::new("bash");
    command
        .arg("-c")
        .arg(format!("exec 3<&{} && LISTEN_PID=$$ LISTEN_FDS=1 exec \"$0\" \"$@\"", inherited.as_raw_fd()));
    command.arg(program.get_program()).args(program.get_args()).stderr(Stdio::null()).stdout(Stdio::piped());
    for (name, value) in program.get_envs() {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    let mut child = command.spawn().unwrap();
    drop(inherited);
    let mut announcement = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut announcement).unwrap();
    support::succeed(lunway(&["discover", &address.to_string()]));
    let process = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(process, rustix::process::Signal::TERM).unwrap();
    assert!(wait(&mut child, PATIENCE).unwrap().success());
    let client = TcpStream::connect(address).unwrap();
    assert_eq!(listener.accept().unwrap().1, client.local_addr().unwrap());
}

#[test]
fn an_idle_daemon_with_a_file_ends_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("disk.img");
    std::fs::write(&path, vec![7; 1 << 20]).unwrap();
    let served = Served::start(&["--lun", &format!("0={}", path.display())]);
    let begin = Instant::now();
    let status = served.terminate();
    // Devices that are still referred to are waited for 5 s.
    assert!(status.success() && begin.elapsed() < Duration::from_millis(4500), "{:?}", begin.elapsed());
}

/// What runs `attach` with a notification socket; what it says there, and the process.
fn attach(more: &[&str], notify: &Path) -> (UnixDatagram, std::process::Child) {
    let socket = UnixDatagram::bind(notify).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut command = lunway(&["attach"]);
    command.args(more).env("NOTIFY_SOCKET", notify).stdout(Stdio::null()).stderr(Stdio::piped());
    let child = command.spawn().unwrap();
    (socket, child)
}

fn hear(socket: &UnixDatagram) -> String {
    let mut buffer = [0; 4096];
    let len = socket.recv(&mut buffer).unwrap();
    String::from_utf8_lossy(&buffer[..len]).into_owned()
}

/// A line of `/proc/PID/FILE` that begins so; the rest of it.
fn of_process(child: &std::process::Child, file: &str, key: &str) -> String {
    let text = std::fs::read_to_string(format!("/proc/{}/{file}", child.id())).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix(key));
    line.unwrap_or_else(|| panic!("no {key} in {text}")).trim().to_owned()
}

/// Of each thread, whether `PR_SET_IO_FLUSHER` holds: `PF_MEMALLOC_NOIO` of the kernel's task flags (proc_pid_stat(5),
/// field 9).
fn flushers(child: &std::process::Child) -> Vec<bool> {
    const PF_MEMALLOC_NOIO: u64 = 0x0008_0000;
    let threads = std::fs::read_dir(format!("/proc/{}/task", child.id())).unwrap();
    let flags = threads.map(|thread| {
        let stat = std::fs::read_to_string(thread.unwrap().path().join("stat")).unwrap();
        // The name, which may hold anything, ends with the last parenthesis.
        let (_, fields) = stat.rsplit_once(") ").unwrap();
        fields.split(' ').nth(6).unwrap().parse::<u64>().unwrap()
    });
    flags.map(|flags| flags & PF_MEMALLOC_NOIO != 0).collect()
}

/// Memory of its own (private, writable) that is not locked, by its mappings: VmFlags of smaps (proc_pid_smaps(5)),
/// where `lo` is locked, and `dp` what the kernel may drop and never locks, as the state of the vDSO's getrandom.
fn unlocked(child: &std::process::Child) -> Vec<String> {
    let smaps = std::fs::read_to_string(format!("/proc/{}/smaps", child.id())).unwrap();
    let (mut mapping, mut unlocked) = ("", Vec::new());
    for line in smaps.lines() {
        match line.strip_prefix("VmFlags:") {
            None if line.split(' ').next().is_some_and(|range| range.contains('-')) => mapping = line,
            Some(flags)
                if mapping.contains(" rw-p ")
                    && !flags.split(' ').any(|flag| flag == "lo" || flag == "dp") =>
            {
                unlocked.push(format!("{mapping}:{flags}"));
            }
            _ => {}
        }
    }
    unlocked
}

#[test]
fn what_a_kernel_writes_through_waits_for_no_memory_and_is_not_killed_for_it() {
    use rustix::thread::CapabilitySet;
    let capabilities = rustix::thread::capabilities(None).unwrap().effective;
    if !capabilities.contains(CapabilitySet::IPC_LOCK) {
        return lunway_foreign::machine_lacks("CAP_IPC_LOCK, to lock memory");
    }
    // script/test-kernel looks, too, in its guest.
    let may_all = capabilities.contains(CapabilitySet::SYS_RESOURCE);
    if !may_all {
        lunway_foreign::machine_lacks("CAP_SYS_RESOURCE, to be an I/O flusher that is not killed");
    }
    let folder = tempfile::tempdir().unwrap();
    let disk = folder.path().join("disk.img");
    std::fs::File::create(&disk).unwrap().set_len(64 << 20).unwrap();
    let mount_point = folder.path().join("mounted");
    std::fs::create_dir(&mount_point).unwrap();
    let nbd = format!("unix:{}", folder.path().join("nbd").display());
    let mut ways = vec![vec![disk.to_str().unwrap(), "--nbd", &nbd]];
    if Path::new("/dev/fuse").exists() {
        ways.push(vec![disk.to_str().unwrap(), "--fuse", mount_point.to_str().unwrap()]);
    } else {
        lunway_foreign::machine_lacks("/dev/fuse");
    }
    for (number, way) in ways.iter().enumerate() {
        let (socket, mut child) = attach(way, &folder.path().join(format!("notify{number}")));
        let ready = hear(&socket);
        assert!(ready.contains("READY=1"), "{ready}");
        if may_all {
            assert!(flushers(&child).iter().all(|&is| is), "{way:?}: {:?}", flushers(&child));
            assert_eq!(of_process(&child, "oom_score_adj", ""), "-1000", "{way:?}");
        }
        let locked = of_process(&child, "status", "VmLck:");
        let locked: u64 = locked.trim_end_matches(" kB").parse().unwrap();
        assert!(locked > 1000, "{way:?}: {locked} kB are locked");
        // Stacks and buffers, which come later, too.
        assert_eq!(unlocked(&child), Vec::<String>::new(), "{way:?}");
        let process = rustix::process::Pid::from_child(&child);
        rustix::process::kill_process(process, rustix::process::Signal::TERM).unwrap();
        assert!(hear(&socket).contains("STOPPING=1"));
        assert!(wait(&mut child, PATIENCE).unwrap().success());
    }
}

/// A process that has a score keeps it; of a target on loopback memory is not locked.
#[test]
fn a_target_of_this_machine_alone_is_spared_unless_it_was_given_another_score() {
    use rustix::thread::CapabilitySet;
    let capabilities = rustix::thread::capabilities(None).unwrap().effective;
    if !capabilities.contains(CapabilitySet::SYS_RESOURCE) {
        return lunway_foreign::machine_lacks("CAP_SYS_RESOURCE, to be an I/O flusher that is not killed");
    }
    let folder = tempfile::tempdir().unwrap();
    let disk = folder.path().join("disk.img");
    std::fs::File::create(&disk).unwrap().set_len(64 << 20).unwrap();
    let lun = format!("0={}", disk.display());
    for (given, listen, score, is_flusher) in
        [("0", "127.0.0.1:0", "-1000", true), ("7", "127.0.0.1:0", "7", true), ("0", "0.0.0.0:0", "0", false)]
    {
        let program = lunway(&["serve", "--listen", listen, "--lun", &lun, "--open"]);
        let mut command = Command::new("bash");
        command.arg("-c").arg(format!("echo {given} > /proc/self/oom_score_adj && exec \"$0\" \"$@\""));
        command.arg(program.get_program()).args(program.get_args()).env_remove("RUST_LOG");
        command.stdout(Stdio::piped()).stderr(Stdio::null());
        command
            .env("LUNWAY_RUNTIME_DIR", folder.path().join("run"))
            .env("LUNWAY_SOCKET", folder.path().join("sock"));
        let mut child = command.spawn().unwrap();
        let mut announcement = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut announcement).unwrap();
        let (is, flushing) = (of_process(&child, "oom_score_adj", ""), flushers(&child));
        let locked = of_process(&child, "status", "VmLck:");
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!((is.as_str(), locked.as_str()), (score, "0 kB"), "{listen}, given {given}");
        assert!(flushing.iter().all(|is| *is == is_flusher), "{listen}: {flushing:?}");
    }
}

/// The flags with which a process has a file open, of each of its descriptors (proc_pid_fdinfo(5)).
fn flags_of(child: &std::process::Child, file: &Path) -> Vec<u32> {
    let folder = format!("/proc/{}/fd", child.id());
    let descriptors = std::fs::read_dir(folder).unwrap().flatten();
    let of_file =
        descriptors.filter(|descriptor| std::fs::read_link(descriptor.path()).is_ok_and(|to| to == file));
    let flags = |descriptor: std::fs::DirEntry| {
        let info = format!("fdinfo/{}", descriptor.file_name().to_str().unwrap());
        u32::from_str_radix(&of_process(child, &info, "flags:"), 8).unwrap()
    };
    of_file.map(flags).collect()
}

#[test]
fn a_disk_without_a_cache_is_open_past_the_page_cache() {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let disk = folder.path().canonicalize().unwrap().join("disk.img");
    std::fs::File::create(&disk).unwrap().set_len(64 << 20).unwrap();
    let direct = rustix::fs::OFlags::DIRECT;
    if rustix::fs::open(&disk, rustix::fs::OFlags::RDWR | direct, rustix::fs::Mode::empty()).is_err() {
        return lunway_foreign::machine_lacks("a file system with O_DIRECT");
    }
    for (cache, is_direct) in [("none", true), ("writeback", false)] {
        let name = format!("{}?cache={cache}", disk.display());
        let nbd = format!("unix:{}", folder.path().join(cache).display());
        let (socket, mut child) =
            attach(&[&name, "--nbd", &nbd], &folder.path().join(format!("notify-{cache}")));
        assert!(hear(&socket).contains("READY=1"));
        let flags = flags_of(&child, &disk);
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(!flags.is_empty(), "the process has it open");
        assert!(flags.iter().any(|flags| flags & direct.bits() != 0) == is_direct, "{cache}: {flags:?}");
    }
}

#[test]
fn memory_that_is_itself_the_disk_is_neither_locked_nor_spared() {
    let folder = tempfile::tempdir().unwrap();
    let nbd = format!("unix:{}", folder.path().join("nbd").display());
    let (socket, mut child) = attach(&["ram:1T", "--nbd", &nbd], &folder.path().join("notify"));
    assert!(hear(&socket).contains("READY=1"));
    assert_eq!(of_process(&child, "status", "VmLck:"), "0 kB");
    assert_eq!(
        of_process(&child, "oom_score_adj", ""),
        std::fs::read_to_string("/proc/self/oom_score_adj").unwrap().trim()
    );
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn protection_that_cannot_be_had_is_a_line_of_the_log_that_says_what_gives_it() {
    let Some(setpriv) = lunway_foreign::program("setpriv") else { return };
    if !rustix::process::geteuid().is_root() {
        return lunway_foreign::machine_lacks("root, to take its privileges away");
    }
    let folder = tempfile::tempdir().unwrap();
    let disk = folder.path().join("disk.img");
    std::fs::File::create(&disk).unwrap().set_len(64 << 20).unwrap();
    let nbd = format!("unix:{}", folder.path().join("nbd").display());
    let mut command = Command::new(setpriv);
    command.args(["--bounding-set=-all", "--inh-caps=-all"]).arg(env!("CARGO_BIN_EXE_lunway"));
    command.args(["attach", disk.to_str().unwrap(), "--nbd", &nbd]).env_remove("RUST_LOG");
    let ready = || folder.path().join("nbd").exists();
    let output = support::interrupted(command, ready);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    for (what, remedy) in [
        ("PR_SET_IO_FLUSHER", "AmbientCapabilities=CAP_SYS_RESOURCE"),
        ("oom_score_adj", "OOMScoreAdjust=-1000"),
        ("memory cannot be locked", "LimitMEMLOCK=infinity"),
    ] {
        let lines: Vec<_> =
            said.lines().filter(|line| line.contains(what) && line.contains("WARN")).collect();
        assert!(lines.len() == 1 && lines[0].contains(remedy), "{what}: {said}");
    }
}

#[test]
fn the_units_are_what_systemd_understands() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../contrib");
    let Some(program) = lunway_foreign::program("systemd-analyze") else { return };
    let mut analyze = Command::new(program);
    let copies = tempfile::tempdir().unwrap();
    // The program and its user need not be installed here.
    let unit = std::fs::read_to_string(folder.join("lunway.service")).unwrap();
    // A signal could not tell `systemctl reload` that it is refused.
    assert!(unit.contains("ExecReload=/usr/local/bin/lunway reload\n"), "{unit}");
    let unit = unit.replace("/usr/local/bin/lunway serve", "/bin/true");
    let unit = unit.replace("/usr/local/bin/lunway reload", "/bin/true");
    let unit: String = unit
        .lines()
        .filter(|line| !line.starts_with("User=") && !line.starts_with("Group="))
        .map(|line| format!("{line}\n"))
        .collect();
    std::fs::write(copies.path().join("lunway.service"), unit).unwrap();
    std::fs::copy(folder.join("lunway.socket"), copies.path().join("lunway.socket")).unwrap();
    let unit = std::fs::read_to_string(folder.join("lunway-attach@.service")).unwrap();
    assert!(unit.contains("/usr/local/bin/lunway attach ${DEVICE} $WAY $MORE"), "{unit}");
    let unit = unit.replace("/usr/local/bin/lunway attach", "/bin/true");
    // An instance is verified by its own name.
    std::fs::write(copies.path().join("lunway-attach@data.service"), unit).unwrap();
    let unit = std::fs::read_to_string(folder.join("lunway-backup@.service")).unwrap();
    assert!(
        unit.contains("/usr/local/bin/lunway backup run ${SOURCE} ${DESTINATION} $MORE --json"),
        "{unit}"
    );
    let unit = unit.replace("/usr/local/bin/lunway backup run", "/bin/true");
    std::fs::write(copies.path().join("lunway-backup@db.service"), unit).unwrap();
    std::fs::copy(folder.join("lunway-backup@.timer"), copies.path().join("lunway-backup@db.timer")).unwrap();
    analyze.args(["--man=no", "verify"]);
    let names = [
        "lunway.service",
        "lunway.socket",
        "lunway-attach@data.service",
        "lunway-backup@db.service",
        "lunway-backup@db.timer",
    ];
    analyze.args(names.map(|name| copies.path().join(name)));
    let output = support::finish(analyze, PATIENCE);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    let ours: Vec<_> = said.lines().filter(|line| line.contains("lunway")).collect();
    assert!(output.status.success() && ours.is_empty(), "{said}");
}

#[test]
fn a_daemon_whose_folder_is_its_own_saves_changes_to_a_file_that_is_roots() {
    let Some(setpriv) = lunway_foreign::program("setpriv") else { return };
    if !rustix::process::geteuid().is_root() {
        return lunway_foreign::not_run("setpriv: root");
    }
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    // A user who is nobody in particular.
    let user = 4711;
    // Others cannot reach the program where it was built.
    let program = path("lunway");
    std::fs::copy(env!("CARGO_BIN_EXE_lunway"), &program).unwrap();
    let file = "listen = [\"127.0.0.1:0\"]   # here\ncores = 1\n[[target]]\nname = \"iqn.2026-11.com.example:disk\"\nopen = true\n";
    std::fs::write(path("lunway.toml"), file).unwrap();
    std::os::unix::fs::chown(folder.path(), Some(user), Some(user)).unwrap();
    let as_user = |words: &[&str]| {
        let mut command = Command::new(&setpriv);
        let ids = [format!("--reuid={user}"), format!("--regid={user}")];
        command.args(ids).args(["--clear-groups", "--inh-caps=-all"]).arg(&program).args(words);
        command.env("LUNWAY_SOCKET", path("api.sock")).env("LUNWAY_RUNTIME_DIR", path("run"));
        command.env("STATE_DIRECTORY", path("state")).current_dir(folder.path());
        command
    };
    let mut child = as_user(&["serve", "-c", "lunway.toml"]).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
    let managed = lines.find(|line| line.contains("managed")).unwrap_or_default();
    let added = as_user(&["lun", "add", "iqn.2026-11.com.example:disk", "3", "ram:1M"]).output().unwrap();
    let said = String::from_utf8_lossy(&added.stderr).into_owned();
    let state = std::fs::read_dir(path("state")).map(Iterator::count);
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(managed.starts_with("managed on "), "{managed}");
    assert!(added.status.success(), "{said}");
    let saved = std::fs::read_to_string(path("lunway.toml")).unwrap();
    assert!(saved.contains("# here") && saved.contains("ram:1M"), "{saved}");
    assert!(state.is_ok_and(|files| files > 0), "state is kept where systemd says");
}

#[test]
fn an_attach_that_cannot_end_says_what_it_waits_for_and_a_second_sigterm_ends_it() {
    let folder = tempfile::tempdir().unwrap();
    let nbd = format!("unix:{}", folder.path().join("nbd").display());
    // Its last flush takes an hour.
    let (socket, mut child) = attach(&["delay:3600s:ram:1M", "--nbd", &nbd], &folder.path().join("notify"));
    assert!(hear(&socket).contains("READY=1"));
    let terminate = |child: &std::process::Child| {
        let process = rustix::process::Pid::from_child(child);
        rustix::process::kill_process(process, rustix::process::Signal::TERM).unwrap();
    };
    terminate(&child);
    assert!(hear(&socket).contains("finishing I/O in flight"));
    let waiting = hear(&socket);
    assert!(waiting.contains("waiting for delay:"), "{waiting}");
    terminate(&child);
    let status = wait(&mut child, PATIENCE).expect("it ends when it is asked again");
    assert_eq!(status.code(), Some(1));
    let mut said = String::new();
    child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    assert!(said.contains("again ends at once") && said.contains("may be lost"), "{said}");
}
