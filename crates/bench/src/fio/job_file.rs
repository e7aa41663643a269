//! A job file of fio's.

use std::collections::BTreeMap;
use std::path::Path;

use lunway_block::Geometry;

use super::error::JobFileError;
use super::ini::{Environment, Ini};
use super::keys::Reason;
use super::section::Section;
use crate::run::schedule::{Schedule, ScheduledJob};

/// A job file of fio's, understood as far as that is possible without the device that it will run on.
///
/// [`read`](Self::read), then [`schedule`](Self::schedule) for a device. **What a file asks for is done or refused,
/// never left out in silence**: keys that only choose between ways to do the same are named in [`notes`](Self::notes),
/// and all others that cannot be honoured are an error that names file, line and key. [`KEYS`](super::KEYS) says which
/// are which.
///
/// Sections run side by side, each on its own threads, until one has `stonewall`: that one waits for all above it.
#[derive(Clone, Debug)]
pub struct JobFile {
    sections: Vec<Section>,
    notes: Vec<String>,
    direct: bool,
}

impl JobFile {
    /// Reads a file with all that it includes and the environment of this process.
    pub fn read(path: &Path) -> Result<Self, JobFileError> {
        let environment: Environment<'_> = &|name| std::env::var(name).ok();
        Self::understand(path, &Ini::read(path, environment)?)
    }

    #[cfg(test)]
    pub(super) fn parse(text: &str) -> Result<Self, JobFileError> {
        Self::understand(Path::new("test.fio"), &Ini::parse(text, &|_| None)?)
    }

    fn understand(path: &Path, ini: &Ini) -> Result<Self, JobFileError> {
        if ini.sections.is_empty() {
            return Err(JobFileError::NoJobs { path: path.to_owned() });
        }
        let sections: Vec<_> = ini
            .sections
            .iter()
            .zip(0..)
            .map(|(raw, index)| Section::of(raw, &ini.globals, index))
            .collect::<Result<_, _>>()?;
        let mut without_effect = BTreeMap::<Reason, Vec<&str>>::new();
        for (&reason, keys) in sections.iter().flat_map(|section| &section.without_effect) {
            let known = without_effect.entry(reason).or_default();
            for key in keys {
                if !known.contains(&key.as_str()) {
                    known.push(key);
                }
            }
        }
        let mut notes: Vec<_> = without_effect
            .iter()
            .map(|(reason, keys)| format!("Without effect: {} ({}).", keys.join(", "), reason.sentence()))
            .collect();
        notes.extend(sections.iter().flat_map(Section::notes));
        let direct = sections.iter().any(|section| section.direct == Some(true));
        if direct && sections.iter().any(|section| section.direct != Some(true)) {
            notes.push(
                "The device is opened once: with direct=1 in one section all sections go past the page cache.".into(),
            );
        }
        Ok(Self { sections, notes, direct })
    }

    /// Notes for a reader of the results: keys without effect, and deviations from fio's behaviour.
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// Returns `true` if any section asks for direct I/O, which bypasses the page cache.
    pub fn direct(&self) -> bool {
        self.direct
    }

    /// Returns `true` if any section writes.
    pub fn writes(&self) -> bool {
        self.sections.iter().any(Section::writes)
    }

    /// The jobs on a device of that geometry. `destroy`: they may overwrite what it holds.
    pub fn schedule(&self, geometry: &Geometry, destroy: bool) -> Result<Schedule, JobFileError> {
        let mut schedule = Schedule { stages: Vec::new(), notes: self.notes.clone() };
        for section in &self.sections {
            let (job, short) = section.job(geometry, destroy)?;
            schedule.notes.extend(short);
            let entry = ScheduledJob { job, delay: section.start_delay };
            match schedule.stages.last_mut() {
                Some(stage) if !section.stonewall => stage.push(entry),
                _ => schedule.stages.push(vec![entry]),
            }
        }
        Ok(schedule)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::load::job::{Arrivals, Fill, Job, Limit, Rate, Region};
    use crate::{BlockSizes, Distribution, Mix, Pattern, Share};

    const GIB: u64 = 1 << 30;

    fn schedule(text: &str) -> Result<Schedule, String> {
        let file = JobFile::parse(text).map_err(|error| error.to_string())?;
        file.schedule(&Geometry::plain(GIB), true).map_err(|error| error.to_string())
    }

    /// The job of a file with one section.
    fn job(settings: &str) -> Job {
        schedule(&format!("[a]\n{settings}")).unwrap().stages.remove(0).remove(0).job
    }

    fn refusal(settings: &str) -> String {
        schedule(&format!("[a]\n{settings}")).unwrap_err()
    }

    #[test]
    fn an_empty_section_is_fios_default_job() {
        let job = job("");
        assert_eq!((job.name.as_str(), job.pattern, job.mix), ("a", Pattern::Sequential, Mix::READ));
        assert_eq!((job.block_sizes, job.queue_depth, job.jobs), (BlockSizes::Fixed(4096), 1, 1));
        assert_eq!(job.limit, Limit::Bytes(GIB), "without a runtime, once through the device");
    }

    #[test]
    fn what_a_typical_file_says_is_what_is_run() {
        let job = job(
            "rw=randrw\nrwmixread=70\nbs=8k\niodepth=32\nioengine=libaio\nnumjobs=4\nsize=25%\noffset=50%\nruntime=2m\n\
             time_based\nramp_time=5s\nrandom_distribution=zipf:1.2\nrandseed=7\nname=mixed\nzero_buffers",
        );
        assert_eq!((job.name.as_str(), job.queue_depth, job.jobs, job.seed), ("mixed", 32, 4, 7));
        assert_eq!(
            (job.pattern, job.mix),
            (Pattern::Random(Distribution::Zipf(1.2)), Mix { read_percent: 70 })
        );
        assert_eq!(job.region, Some(Region { offset: GIB / 2, len: GIB / 4 }));
        assert_eq!((job.limit, job.ramp), (Limit::Time(Duration::from_secs(120)), Duration::from_secs(5)));
        assert_eq!((job.block_sizes, job.fill), (BlockSizes::Fixed(8192), Fill::Zero));
    }

    #[test]
    fn size_io_size_loops_and_number_ios_decide_together_when_a_job_ends() {
        let bytes = |settings: &str| job(settings).limit;
        assert_eq!(bytes("size=1m"), Limit::Bytes(1 << 20));
        assert_eq!(bytes("size=1m\nloops=3"), Limit::Bytes(3 << 20));
        assert_eq!(bytes("size=1m\nio_size=4m"), Limit::Bytes(4 << 20));
        assert_eq!(bytes("size=1m\nnumber_ios=10"), Limit::Bytes(40960));
        let time = Duration::from_secs(9);
        assert_eq!(bytes("size=1m\nruntime=9"), Limit::Either { time, bytes: 1 << 20 });
        assert_eq!(bytes("size=1m\ntime_based"), Limit::Bytes(1 << 20), "as fio does, with a note");
        assert_eq!(bytes("filesize=1m"), Limit::Bytes(1 << 20));
    }

    #[test]
    fn random_blocks_come_once_a_pass_unless_the_map_is_switched_off() {
        assert_eq!(job("rw=randread").pattern, Pattern::Random(Distribution::Once));
        assert_eq!(job("rw=randread\nnorandommap").pattern, Pattern::RANDOM);
        assert_eq!(job("rw=randread\nnorandommap=0").pattern, Pattern::Random(Distribution::Once));
        let skewed = |value: &str| job(&format!("rw=randread\nrandom_distribution={value}")).pattern;
        assert_eq!(skewed("zipf"), Pattern::Random(Distribution::Zipf(1.1)));
        assert_eq!(skewed("pareto:0.3"), Pattern::Random(Distribution::Pareto(0.3)));
        assert_eq!(skewed("random"), Pattern::Random(Distribution::Once));
    }

    #[test]
    fn block_sizes_can_differ_by_direction_and_by_share() {
        let whole = |block_size| vec![Share { block_size, percent: 100 }];
        let sizes = |settings: &str| job(settings).block_sizes;
        assert_eq!(sizes("rw=rw\nbs=4k,8k"), BlockSizes::Split { read: whole(4096), write: whole(8192) });
        assert_eq!(sizes("rw=write\nbs=4k,8k"), BlockSizes::Fixed(8192));
        assert_eq!(sizes("rw=read\nbs=,8k"), BlockSizes::Fixed(4096));
        let BlockSizes::Split { read, write } = sizes("rw=randrw\nbssplit=4k/60:8k/40,16k/") else {
            panic!()
        };
        assert_eq!(write, whole(16384));
        assert_eq!(
            read.iter().map(|s| (s.block_size, s.percent)).collect::<Vec<_>>(),
            [(4096, 60), (8192, 40)]
        );
        let BlockSizes::Split { read, .. } = sizes("bssplit=4k/50:8k/:16k/:32k") else { panic!() };
        assert_eq!(read.iter().map(|share| share.percent).collect::<Vec<_>>(), [50, 17, 17, 16]);
        for wrong in ["4k/60:8k/60", "4k/30:8k/30", "4k/50:", "/50", "4k/x"] {
            assert!(refusal(&format!("bssplit={wrong}")).contains("test.fio:2"), "{wrong}");
        }
    }

    #[test]
    fn rates_of_both_directions_decide_the_mix_as_with_fio() {
        let both = job("rw=randrw\nrwmixread=70\nrate_iops=1000");
        assert_eq!((both.rate, both.mix), (Some(Rate::Iops(2000)), Mix { read_percent: 50 }));
        let bytes = job("rw=rw\nrate=3m,1m\nrate_process=poisson");
        assert_eq!((bytes.rate, bytes.mix.read_percent), (Some(Rate::BytesPerSecond(4 << 20)), 75));
        assert_eq!(bytes.arrivals, Arrivals::Poisson);
        assert_eq!(job("rw=write\nrate=,1m").rate, Some(Rate::BytesPerSecond(1 << 20)));
        assert_eq!(job("rw=read\nrate=,1m").rate, None);
        assert!(refusal("rw=rw\nrate=1m,").contains("one direction"));
        assert!(refusal("rw=rw\nrate_iops=100,200").contains("per cent"));
        assert!(refusal("rate=1m\nrate_iops=5").contains("exclude"));
    }

    #[test]
    fn sections_run_side_by_side_until_a_stonewall() {
        let schedule = schedule(
            "[global]\nbs=4k\n[a]\n[b]\nstartdelay=2\n[c]\nstonewall\n[d]\n[global]\nstonewall\nbs=8k\n[e]\n[f]\n",
        )
        .unwrap();
        let names: Vec<Vec<_>> = schedule
            .stages
            .iter()
            .map(|stage| stage.iter().map(|entry| entry.job.name.as_str()).collect())
            .collect();
        assert_eq!(names, [vec!["a", "b"], vec!["c", "d"], vec!["e"], vec!["f"]]);
        assert_eq!(schedule.stages[0][1].delay, Duration::from_secs(2));
        assert_eq!(schedule.stages[1][1].job.block_sizes, BlockSizes::Fixed(4096));
        assert_eq!(schedule.stages[3][0].job.block_sizes, BlockSizes::Fixed(8192));
    }

    #[test]
    fn what_cannot_be_honoured_is_refused_by_file_line_and_key() {
        assert_eq!(
            refusal("bs=4k\nthinktime=5"),
            "test.fio:3: thinktime=5 cannot be honoured: pauses between I/Os are not offered here; rate_iops spaces them; \
             take it out if the job makes sense without"
        );
        assert_eq!(refusal("colour=red"), "test.fio:2: `colour` is not a known fio option");
        assert!(refusal("rw=trim").starts_with("test.fio:2: rw=trim: "));
        assert!(refusal("rw=randread:8").contains("test.fio:2"));
        assert!(refusal("size=8*$mb_memory").contains("write the number"));
        assert!(refusal("bs=1000").contains("[a]: a block size of 1000"));
        assert!(
            schedule("[a]\nthinktime=0\nzonemode=none\nsync=0\ndo_verify\nend_fsync=0").is_ok(),
            "they ask for nothing"
        );
        assert!(schedule("[global]\nbs=4k\n").unwrap_err().contains("no section"));
    }

    #[test]
    fn what_has_no_effect_is_said_once_and_with_a_reason() {
        let file =
            JobFile::parse("[global]\nioengine=libaio\nthread\nfilename=/x\n[a]\niodepth_batch=4\n[b]\n")
                .unwrap();
        assert_eq!(
            file.notes(),
            [
                "Without effect: filename (the device of the command line is measured).",
                "Without effect: ioengine, iodepth_batch (the device decides how its I/Os are submitted).",
                "Without effect: thread (the system decides where threads run).",
            ]
        );
        let notes = JobFile::parse("[a]\niodepth=8\ndirect=1\n[b]\ndescription=why").unwrap();
        assert!(notes.direct() && !notes.writes());
        let notes = notes.notes().join("\n");
        assert!(notes.contains("[a]: with ioengine=psync, its default, fio keeps 1"), "{notes}");
        assert!(notes.contains("opened once") && notes.contains("[b]: why"), "{notes}");
    }

    #[test]
    fn a_size_beyond_the_device_ends_with_it_and_says_so() {
        let schedule = schedule("[a]\noffset=512m\nsize=2g\n").unwrap();
        assert_eq!(schedule.stages[0][0].job.region, Some(Region { offset: GIB / 2, len: GIB / 2 }));
        assert!(schedule.notes[0].contains("the device ends"), "{:?}", schedule.notes);
    }

    #[test]
    fn the_same_file_issues_the_same_ios_each_time_unless_told_otherwise() {
        assert_eq!(job("").seed, job("bs=8k").seed);
        assert_ne!(job("randrepeat=0").seed, job("randrepeat=0").seed);
    }
}
