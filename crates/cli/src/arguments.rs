//! The command line.

use clap::error::{ContextKind, ContextValue, Error};
use clap::{ArgAction, CommandFactory, Parser, Subcommand};

use crate::command::manage::{acl, config, lun, portal, reservation, session, snapshot, target, top};
use crate::command::{
    attach, backup, bench, compare, completions, copy, demo, discover, disk, doctor, inspect, lab, man, net,
    paths, report, serve,
};
use crate::failure::Failure;
use crate::logging::LogFormat;

const DEVICES: &str = "\
Devices:
  PATH, raw:PATH        raw image or block device; raw: skips the check for
                        other formats (VMDK, VDI, gzip …)
  *.vhdx, *.avhdx, vhdx:PATH
                        virtual disk with its parents (lunway disk)
  *.vhd, *.qcow2, vhd:PATH, qcow2:PATH
                        image of another format with its parents, read-only
  ram:SIZE              memory
  null:SIZE             discards writes, reads as zeroes
  iscsi://[USER@]HOST[:PORT]/TARGET/LUN
                        logical unit; the CHAP secret in LUNWAY_CHAP_SECRET, or
                        in a file: ?secret_file=PATH
  iscsi://…?portal=HOST[:PORT]
                        the same over several paths (lunway paths)
  *paths.toml, paths:PATH
                        the same, described in a file
  rbd:POOL[/NAMESPACE]/IMAGE[@SNAPSHOT]
                        image of a Ceph cluster; ?conf=, id=, keyring=,
                        timeout=, break_lock=, share=
  point:FOLDER[@POINT]  point of a backup, read-only; ?writes=discard,
                        or ?into=FILE.vhdx: it becomes a disk of its own;
                        ?key-file=FILE for an encrypted repository, or the file
                        in LUNWAY_KEY_FILE
  nbd://HOST[:PORT]/EXPORT, nbd+unix:///EXPORT?socket=PATH
                        export of an NBD server
  delay:TIME:DEVICE, rate:RATE:DEVICE, fault:SPEC:DEVICE, readonly:DEVICE,
  stats:DEVICE          a device with a delay, a limited rate, errors …

Sizes: 4K, 1M, 2G, 4TiB (powers of 1024); 100MB (powers of 1000).
Times: 500us, 10ms, 30s, 2m.

Exit codes:
  0    done
  1    failed
  2    wrong usage, or a configuration that is not valid
  3, 4, 5
       verdicts of `doctor`: warn, bad, unknown
  130  ended by a second Ctrl-C";

/// Heading of what every command takes, behind its own options.
const GLOBAL: &str = "Options of every command";

/// A software SAN: serves block volumes over iSCSI, connects to them, copies and measures them
#[derive(Debug, Parser)]
#[command(name = "lunway", version, after_help = DEVICES, max_term_width = 110)]
pub(crate) struct Arguments {
    /// Log more, to standard error; repeat it to log still more. RUST_LOG sets levels for each module
    #[arg(short, long, global = true, help_heading = GLOBAL, action = ArgAction::Count)]
    pub(crate) verbose: u8,
    /// Format of the log
    #[arg(
        long,
        global = true,
        help_heading = GLOBAL,
        value_enum,
        default_value_t,
        value_name = "FORMAT",
        env = "LUNWAY_LOG_FORMAT"
    )]
    pub(crate) log_format: LogFormat,
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// Commands of the program.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    Demo(demo::Demo),
    Serve(serve::Serve),
    Discover(discover::Discover),
    Inspect(inspect::Inspect),
    Doctor(Box<doctor::Doctor>),
    Paths(paths::Paths),
    Copy(copy::Copy),
    Disk(disk::Disk),
    Backup(Box<backup::Backup>),
    Attach(attach::Attach),
    Bench(Box<bench::Bench>),
    Compare(Box<compare::Compare>),
    Net(Box<net::Net>),
    Lab(lab::Lab),
    Report(report::Report),
    Target(target::Target),
    Lun(lun::Lun),
    Snapshot(snapshot::Snapshot),
    Portal(portal::Portal),
    Acl(acl::Acl),
    Session(session::SessionCommand),
    Reservation(reservation::Reservation),
    Config(config::Config),
    Reload(config::Reload),
    Top(top::Top),
    Completions(completions::Completions),
    Man(man::Man),
}

impl Command {
    /// Returns `true` if it pulls cables and kills targets, and says itself what came of that.
    pub(crate) fn breaks_things(&self) -> bool {
        matches!(self, Self::Demo(_) | Self::Lab(_))
    }

    /// Returns `true` if other programs wait for the command's I/O until a signal ends it.
    pub(crate) fn serves(&self) -> bool {
        match self {
            Self::Serve(_) | Self::Attach(_) => true,
            Self::Disk(disk) => disk.serves(),
            Self::Backup(backup) => backup.serves(),
            _ => false,
        }
    }

    pub(crate) fn run(self) -> Result<(), Failure> {
        match self {
            Self::Demo(demo) => demo.run(),
            Self::Serve(serve) => serve.run(),
            Self::Discover(discover) => discover.run(),
            Self::Inspect(inspect) => inspect.run(),
            Self::Doctor(doctor) => doctor.run(),
            Self::Paths(paths) => paths.run(),
            Self::Copy(copy) => copy.run(),
            Self::Disk(disk) => disk.run(),
            Self::Backup(backup) => backup.run(),
            Self::Attach(attach) => attach.run(),
            Self::Bench(bench) => bench.run(),
            Self::Compare(compare) => compare.run(),
            Self::Net(net) => net.run(),
            Self::Lab(lab) => lab.run(),
            Self::Report(report) => report.run(),
            Self::Target(target) => target.run(),
            Self::Lun(lun) => lun.run(),
            Self::Snapshot(snapshot) => snapshot.run(),
            Self::Portal(portal) => portal.run(),
            Self::Acl(acl) => acl.run(),
            Self::Session(session) => session.run(),
            Self::Reservation(reservation) => reservation.run(),
            Self::Config(config) => config.run(),
            Self::Reload(reload) => reload.run(),
            Self::Top(top) => top.run(),
            Self::Completions(completions) => completions.run(),
            Self::Man(man) => man.run(),
        }
    }
}

/// What restic and borg call commands of `lunway backup`, and the commands.
const BACKUP_WORDS: [(&str, &str); 10] = [
    ("backup", "run"),
    ("check", "verify"),
    ("compact", "prune"),
    ("create", "run"),
    ("delete", "prune"),
    ("extract", "restore"),
    ("forget", "prune"),
    ("info", "status"),
    ("snapshots", "list"),
    ("stats", "status"),
];

/// An unknown command of `lunway backup`, with the one that other programs call so.
pub(crate) fn with_word_meant(mut error: Error, arguments: impl Iterator<Item = String>) -> Error {
    let Some(ContextValue::String(word)) = error.get(ContextKind::InvalidSubcommand) else { return error };
    let known = BACKUP_WORDS.iter().find(|(theirs, _)| theirs == word);
    let mut commands = arguments.skip(1).filter(|word| !word.starts_with('-'));
    if let Some((_, ours)) = known.filter(|_| commands.next().is_some_and(|first| first == "backup")) {
        error.insert(ContextKind::SuggestedSubcommand, ContextValue::String((*ours).to_owned()));
    }
    error
}

/// The help of the command that was given: `lunway disk create --help`.
pub(crate) fn help_command(arguments: impl Iterator<Item = String>) -> String {
    let (mut command, mut name) = (Arguments::command(), "lunway".to_owned());
    for word in arguments.skip(1) {
        let Some(below) = command.find_subcommand(&word).cloned() else { break };
        (command, name) = (below, format!("{name} {word}"));
    }
    format!("{name} --help")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wrong_usage_names_the_help_of_its_command() {
        let help = |arguments: &str| help_command(arguments.split(' ').map(str::to_owned));
        assert_eq!(help("lunway bench x --job a"), "lunway bench --help");
        assert_eq!(help("lunway -v bench"), "lunway --help");
        assert_eq!(help("lunway disk create x --fixed"), "lunway disk create --help");
        assert_eq!(help("lunway net serve"), "lunway net serve --help");
        assert_eq!(help("lunway inspect disk"), "lunway inspect --help");
    }

    #[test]
    fn words_of_other_programs_are_commands_that_there_are() {
        let backup = Arguments::command().find_subcommand("backup").cloned().unwrap_or_default();
        for (theirs, ours) in BACKUP_WORDS {
            assert!(backup.find_subcommand(ours).is_some_and(|command| !command.is_hide_set()), "{ours}");
            assert!(backup.find_subcommand(theirs).is_none(), "{theirs}");
        }
    }

    #[test]
    fn the_definition_of_the_command_line_has_no_contradiction() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn the_help_and_the_page_of_devices_name_every_kind() {
        let page = include_str!("../../../docs/src/devices.md");
        for kind in lunway_block::spec::KINDS.split(", ") {
            // A file is a path, in the help.
            assert!(kind == "file:" || DEVICES.contains(kind), "{kind} is missing in the help");
            assert!(page.contains(&format!("`{kind}")), "{kind} is missing in docs/src/devices.md");
        }
    }
}
