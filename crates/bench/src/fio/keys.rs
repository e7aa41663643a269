//! Every key that fio knows, and what becomes of it here.

/// Treatment of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Treatment {
    /// Does here what it does in fio.
    Honoured(Key),
    /// Taken, and said to have no effect here: it chooses between ways to do the same, or a log that is not written.
    WithoutEffect(Reason),
    /// Refused unless it has one of these values, which ask for nothing. An empty list: always refused.
    Refused {
        /// Values that ask for nothing.
        unless: &'static [&'static str],
        /// Reason why it cannot be honoured, as part of a sentence.
        why: &'static str,
    },
}

/// A key that is honoured.
#[expect(missing_docs, reason = "each is fio's key of that name")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Key {
    BlockSize,
    BlockSizeSplit,
    Buffered,
    Description,
    Direct,
    FileSize,
    IoDepth,
    IoEngine,
    IoSize,
    KbBase,
    Loops,
    Name,
    NoRandomMap,
    NumJobs,
    NumberIos,
    Offset,
    RampTime,
    RandRepeat,
    RandSeed,
    RandomDistribution,
    Rate,
    RateIops,
    RateProcess,
    ReadWrite,
    Runtime,
    RwMixRead,
    RwMixWrite,
    Size,
    StartDelay,
    Stonewall,
    TimeBased,
    Verify,
    ZeroBuffers,
}

/// Reason why a key has no effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Reason {
    /// The device of the command line is measured, whatever files the job file names.
    OneDevice,
    /// Submitting I/Os to a kernel is the device's own affair here.
    Engine,
    /// Placement and scheduling of threads are left to the operating system.
    Placement,
    /// Other outputs exist here: `--json-plus-file`, `--stream`.
    Output,
    /// All that was written is read back once, at the end, whatever the details.
    Verification,
    /// Data is incompressible and not repeated, made in one way.
    Data,
    /// Addresses come from one generator.
    Generator,
    /// A failed I/O is counted, and the job goes on.
    Errors,
    /// Clones of a section are reported together, sections apart.
    Grouping,
}

impl Reason {
    /// The reason as a sentence behind the keys that it concerns.
    pub fn sentence(self) -> &'static str {
        match self {
            Self::OneDevice => "the device of the command line is measured",
            Self::Engine => "the device decides how its I/Os are submitted",
            Self::Placement => "the system decides where threads run",
            Self::Output => "other outputs are --json-plus-file and --stream",
            Self::Verification => "all written blocks are read back once, at the end",
            Self::Data => "data is incompressible and made in one way",
            Self::Generator => "addresses come from one generator",
            Self::Errors => "failed I/Os are counted, and the job continues",
            Self::Grouping => "clones of a section are reported together, sections apart",
        }
    }
}

/// Returns the treatment of `key`; `None` for a key that fio does not know either.
pub(super) fn treatment(key: &str) -> Option<Treatment> {
    KEYS.iter().find(|(names, _)| names.contains(&key)).map(|&(_, treatment)| treatment)
}

const fn refused(why: &'static str) -> Treatment {
    Treatment::Refused { unless: &[], why }
}

const fn refused_unless(unless: &'static [&'static str], why: &'static str) -> Treatment {
    Treatment::Refused { unless, why }
}

const ZERO: &[&str] = &["0"];

const TRIMS: &str = "trims are not measured here";
const FLUSHES: &str = "flushes between writes are not issued here, and would change the results";
const ZONES: &str = "zoned access is not offered here";
const REPLAY: &str = "recorded I/O is not replayed here";
const THINKING: &str = "pauses between I/Os are not offered here; rate_iops spaces them";
const COMPRESSIBLE: &str = "data is always incompressible here, which is the harder case";
const STEADY: &str =
    "a job does not end when its figures are steady here; --profile steady measures the steady state";
const LATENCY_TARGET: &str = "no search for a queue depth here: write a section per depth";

/// Names (the first is the one that documents use) and what becomes of them, in the order of fio's own list.
pub const KEYS: &[(&[&str], Treatment)] = {
    use Reason::{Data, Engine, Errors, Generator, Grouping, OneDevice, Output, Placement, Verification};
    use Treatment::{Honoured, WithoutEffect};
    &[
        (&["description"], Honoured(Key::Description)),
        (&["name"], Honoured(Key::Name)),
        (&["rw", "readwrite"], Honoured(Key::ReadWrite)),
        (&["bs", "blocksize"], Honoured(Key::BlockSize)),
        (&["bssplit"], Honoured(Key::BlockSizeSplit)),
        (&["iodepth"], Honoured(Key::IoDepth)),
        (&["numjobs"], Honoured(Key::NumJobs)),
        (&["size"], Honoured(Key::Size)),
        (&["filesize"], Honoured(Key::FileSize)),
        (&["io_size", "io_limit"], Honoured(Key::IoSize)),
        (&["offset", "fileoffset"], Honoured(Key::Offset)),
        (&["number_ios"], Honoured(Key::NumberIos)),
        (&["loops"], Honoured(Key::Loops)),
        (&["runtime", "timeout"], Honoured(Key::Runtime)),
        (&["time_based"], Honoured(Key::TimeBased)),
        (&["ramp_time"], Honoured(Key::RampTime)),
        (&["startdelay"], Honoured(Key::StartDelay)),
        (&["stonewall", "wait_for_previous"], Honoured(Key::Stonewall)),
        (&["rwmixread"], Honoured(Key::RwMixRead)),
        (&["rwmixwrite"], Honoured(Key::RwMixWrite)),
        (&["rate"], Honoured(Key::Rate)),
        (&["rate_iops"], Honoured(Key::RateIops)),
        (&["rate_process"], Honoured(Key::RateProcess)),
        (&["norandommap"], Honoured(Key::NoRandomMap)),
        (&["random_distribution"], Honoured(Key::RandomDistribution)),
        (&["randseed"], Honoured(Key::RandSeed)),
        (&["randrepeat", "allrandrepeat"], Honoured(Key::RandRepeat)),
        (&["verify"], Honoured(Key::Verify)),
        (&["zero_buffers"], Honoured(Key::ZeroBuffers)),
        (&["direct"], Honoured(Key::Direct)),
        (&["buffered"], Honoured(Key::Buffered)),
        (&["kb_base"], Honoured(Key::KbBase)),
        (&["ioengine"], Honoured(Key::IoEngine)),
        (&["filename"], WithoutEffect(OneDevice)),
        (&["directory"], WithoutEffect(OneDevice)),
        (&["filename_format"], WithoutEffect(OneDevice)),
        (&["unique_filename"], WithoutEffect(OneDevice)),
        (&["opendir"], WithoutEffect(OneDevice)),
        (&["lockfile"], WithoutEffect(OneDevice)),
        (&["nrfiles", "nr_files"], WithoutEffect(OneDevice)),
        (&["openfiles"], WithoutEffect(OneDevice)),
        (&["file_service_type"], WithoutEffect(OneDevice)),
        (&["fallocate"], WithoutEffect(OneDevice)),
        (&["fadvise_hint"], WithoutEffect(OneDevice)),
        (&["overwrite"], WithoutEffect(OneDevice)),
        (&["create_serialize"], WithoutEffect(OneDevice)),
        (&["create_fsync"], WithoutEffect(OneDevice)),
        (&["create_on_open"], WithoutEffect(OneDevice)),
        (&["allow_file_create"], WithoutEffect(OneDevice)),
        (&["allow_mounted_write"], WithoutEffect(OneDevice)),
        (&["unlink"], WithoutEffect(OneDevice)),
        (&["unlink_each_loop"], WithoutEffect(OneDevice)),
        (&["invalidate"], WithoutEffect(OneDevice)),
        (&["iodepth_batch", "iodepth_batch_submit"], WithoutEffect(Engine)),
        (&["iodepth_batch_complete_min", "iodepth_batch_complete"], WithoutEffect(Engine)),
        (&["iodepth_batch_complete_max"], WithoutEffect(Engine)),
        (&["iodepth_low"], WithoutEffect(Engine)),
        (&["io_submit_mode"], WithoutEffect(Engine)),
        (&["mem", "iomem"], WithoutEffect(Engine)),
        (&["hugepage-size"], WithoutEffect(Engine)),
        (&["clocksource"], WithoutEffect(Engine)),
        (&["gtod_reduce"], WithoutEffect(Engine)),
        (&["gtod_cpu"], WithoutEffect(Engine)),
        (&["write_hint"], WithoutEffect(Engine)),
        (&["userspace_reap"], WithoutEffect(Engine)),
        (&["nowait"], WithoutEffect(Engine)),
        (&["hipri"], WithoutEffect(Engine)),
        (&["fixedbufs"], WithoutEffect(Engine)),
        (&["registerfiles"], WithoutEffect(Engine)),
        (&["sqthread_poll"], WithoutEffect(Engine)),
        (&["sqthread_poll_cpu"], WithoutEffect(Engine)),
        (&["nonvectored"], WithoutEffect(Engine)),
        (&["uncached"], WithoutEffect(Engine)),
        (&["force_async"], WithoutEffect(Engine)),
        (&["cmdprio_percentage"], WithoutEffect(Engine)),
        (&["cmdprio_class"], WithoutEffect(Engine)),
        (&["cmdprio"], WithoutEffect(Engine)),
        (&["cmdprio_bssplit"], WithoutEffect(Engine)),
        (&["thread"], WithoutEffect(Placement)),
        (&["nice"], WithoutEffect(Placement)),
        (&["prio"], WithoutEffect(Placement)),
        (&["prioclass"], WithoutEffect(Placement)),
        (&["cpumask"], WithoutEffect(Placement)),
        (&["cpus_allowed"], WithoutEffect(Placement)),
        (&["cpus_allowed_policy"], WithoutEffect(Placement)),
        (&["numa_cpu_nodes"], WithoutEffect(Placement)),
        (&["numa_mem_policy"], WithoutEffect(Placement)),
        (&["lockmem"], WithoutEffect(Placement)),
        (&["cgroup"], WithoutEffect(Placement)),
        (&["cgroup_nodelete"], WithoutEffect(Placement)),
        (&["cgroup_weight"], WithoutEffect(Placement)),
        (&["uid"], WithoutEffect(Placement)),
        (&["gid"], WithoutEffect(Placement)),
        (&["ioscheduler"], WithoutEffect(Placement)),
        (&["per_job_logs"], WithoutEffect(Output)),
        (&["write_bw_log"], WithoutEffect(Output)),
        (&["write_lat_log"], WithoutEffect(Output)),
        (&["write_iops_log"], WithoutEffect(Output)),
        (&["write_hist_log"], WithoutEffect(Output)),
        (&["write_iolog"], WithoutEffect(Output)),
        (&["bwavgtime"], WithoutEffect(Output)),
        (&["iopsavgtime"], WithoutEffect(Output)),
        (&["log_entries"], WithoutEffect(Output)),
        (&["log_avg_msec"], WithoutEffect(Output)),
        (&["log_hist_msec"], WithoutEffect(Output)),
        (&["log_hist_coarseness"], WithoutEffect(Output)),
        (&["log_max_value"], WithoutEffect(Output)),
        (&["log_offset"], WithoutEffect(Output)),
        (&["log_prio"], WithoutEffect(Output)),
        (&["log_compression"], WithoutEffect(Output)),
        (&["log_compression_cpus"], WithoutEffect(Output)),
        (&["log_store_compressed"], WithoutEffect(Output)),
        (&["log_unix_epoch"], WithoutEffect(Output)),
        (&["log_alternate_epoch"], WithoutEffect(Output)),
        (&["log_alternate_epoch_clock_id"], WithoutEffect(Output)),
        (&["block_error_percentiles"], WithoutEffect(Output)),
        (&["stats"], WithoutEffect(Output)),
        (&["clat_percentiles"], WithoutEffect(Output)),
        (&["lat_percentiles"], WithoutEffect(Output)),
        (&["slat_percentiles"], WithoutEffect(Output)),
        (&["percentile_list"], WithoutEffect(Output)),
        (&["significant_figures"], WithoutEffect(Output)),
        (&["disk_util"], WithoutEffect(Output)),
        (&["disable_lat"], WithoutEffect(Output)),
        (&["disable_clat"], WithoutEffect(Output)),
        (&["disable_slat"], WithoutEffect(Output)),
        (&["disable_bw_measurement", "disable_bw"], WithoutEffect(Output)),
        (&["unified_rw_reporting"], WithoutEffect(Output)),
        (&["unit_base"], WithoutEffect(Output)),
        (&["group_reporting"], WithoutEffect(Grouping)),
        (&["new_group"], WithoutEffect(Grouping)),
        (&["random_generator"], WithoutEffect(Generator)),
        (&["refill_buffers"], WithoutEffect(Data)),
        (&["scramble_buffers"], WithoutEffect(Data)),
        (&["verify_interval"], WithoutEffect(Verification)),
        (&["verify_offset"], WithoutEffect(Verification)),
        (&["verify_pattern"], WithoutEffect(Verification)),
        (&["verify_fatal"], WithoutEffect(Verification)),
        (&["verify_dump"], WithoutEffect(Verification)),
        (&["verify_async"], WithoutEffect(Verification)),
        (&["verify_backlog"], WithoutEffect(Verification)),
        (&["verify_backlog_batch"], WithoutEffect(Verification)),
        (&["experimental_verify"], WithoutEffect(Verification)),
        (&["verify_state_load"], WithoutEffect(Verification)),
        (&["verify_state_save"], WithoutEffect(Verification)),
        (
            &["serialize_overlap"],
            refused_unless(ZERO, "overlapping I/Os are serialized here only with verify"),
        ),
        (&["ignore_error"], WithoutEffect(Errors)),
        (&["continue_on_error"], WithoutEffect(Errors)),
        (&["error_dump"], WithoutEffect(Errors)),
        (&["exitall_on_error"], WithoutEffect(Errors)),
        (&["do_verify"], refused_unless(&["1"], "verified writes are always read back")),
        (&["verify_only"], refused_unless(ZERO, "the data of another run is unknown here")),
        (&["wait_for"], refused("a section waits for all above it here: write stonewall")),
        (
            &["exitall"],
            refused_unless(ZERO, "a section does not end the others here: give all the same runtime"),
        ),
        (&["exit_what"], refused("a section does not end the others here: give all the same runtime")),
        (&["bsrange", "blocksize_range"], refused("write the sizes with their shares as bssplit")),
        (
            &["bs_unaligned", "blocksize_unaligned"],
            refused_unless(ZERO, "block sizes are whole sectors here"),
        ),
        (&["ba", "blockalign"], refused("blocks lie at multiples of the smallest block size here")),
        (&["offset_align"], refused_unless(ZERO, "blocks lie at multiples of the smallest block size here")),
        (
            &["offset_increment"],
            refused_unless(
                ZERO,
                "all clones work in one region here: write a section for each, with its offset",
            ),
        ),
        (&["rw_sequencer"], refused("an address is never repeated for several I/Os here")),
        (
            &["percentage_random"],
            refused_unless(&["100"], "a job is random or sequential here, not part of each"),
        ),
        (
            &["fill_device", "fill_fs"],
            refused_unless(ZERO, "a device has its size; leave size out to go through all of it"),
        ),
        (&["file_append"], refused_unless(ZERO, "nothing can be appended to a device")),
        (&["create_only"], refused_unless(ZERO, "there is no file to create")),
        (
            &["pre_read"],
            refused_unless(
                ZERO,
                "the cache is not filled in advance here: write a section that reads first, and stonewall in the next one",
            ),
        ),
        (&["fsync"], refused_unless(ZERO, FLUSHES)),
        (&["fdatasync"], refused_unless(ZERO, FLUSHES)),
        (&["end_fsync"], refused_unless(ZERO, FLUSHES)),
        (&["fsync_on_close"], refused_unless(ZERO, FLUSHES)),
        (&["sync_file_range"], refused(FLUSHES)),
        (&["write_barrier"], refused_unless(ZERO, FLUSHES)),
        (&["sync"], refused_unless(&["0", "none"], "writes are acknowledged by the device's cache here")),
        (&["atomic"], refused_unless(ZERO, "atomic writes are not offered here")),
        (&["trim_percentage"], refused_unless(ZERO, TRIMS)),
        (&["trim_verify_zero"], refused_unless(ZERO, TRIMS)),
        (&["trim_backlog"], refused_unless(ZERO, TRIMS)),
        (&["trim_backlog_batch"], refused_unless(ZERO, TRIMS)),
        (&["read_iolog"], refused(REPLAY)),
        (&["read_iolog_chunked"], refused_unless(ZERO, REPLAY)),
        (&["replay_no_stall"], refused_unless(ZERO, REPLAY)),
        (&["replay_redirect"], refused(REPLAY)),
        (&["replay_scale"], refused(REPLAY)),
        (&["replay_align"], refused(REPLAY)),
        (&["replay_time_scale"], refused(REPLAY)),
        (&["replay_skip"], refused(REPLAY)),
        (&["merge_blktrace_file"], refused(REPLAY)),
        (&["merge_blktrace_scalars"], refused(REPLAY)),
        (&["merge_blktrace_iters"], refused(REPLAY)),
        (&["exec_prerun"], refused("a job file does not start programs here")),
        (&["exec_postrun"], refused("a job file does not start programs here")),
        (&["profile"], refused("see --profile for the profiles of this program")),
        (&["zonemode"], refused_unless(&["none"], ZONES)),
        (&["zonesize"], refused_unless(ZERO, ZONES)),
        (&["zonecapacity"], refused_unless(ZERO, ZONES)),
        (&["zonerange"], refused_unless(ZERO, ZONES)),
        (&["zoneskip"], refused_unless(ZERO, ZONES)),
        (&["read_beyond_wp"], refused_unless(ZERO, ZONES)),
        (&["max_open_zones"], refused_unless(ZERO, ZONES)),
        (&["job_max_open_zones"], refused_unless(ZERO, ZONES)),
        (&["ignore_zone_limits"], refused_unless(ZERO, ZONES)),
        (&["zone_reset_threshold"], refused_unless(ZERO, ZONES)),
        (&["zone_reset_frequency"], refused_unless(ZERO, ZONES)),
        (&["thinktime"], refused_unless(ZERO, THINKING)),
        (&["thinktime_spin"], refused_unless(ZERO, THINKING)),
        (&["thinktime_blocks"], refused_unless(&["1"], THINKING)),
        (&["thinktime_blocks_type"], refused(THINKING)),
        (&["thinktime_iotime"], refused_unless(ZERO, THINKING)),
        (&["rate_ignore_thinktime"], refused_unless(ZERO, THINKING)),
        (&["rate_min", "ratemin"], refused_unless(ZERO, "a job that misses its rate is reported, not ended")),
        (&["rate_iops_min"], refused_unless(ZERO, "a job that misses its rate is reported, not ended")),
        (&["rate_cycle", "ratecycle"], refused("a job that misses its rate is reported, not ended")),
        (&["max_latency"], refused_unless(ZERO, "a slow I/O is reported, and does not end the job")),
        (&["latency_target"], refused_unless(ZERO, LATENCY_TARGET)),
        (&["latency_window"], refused_unless(ZERO, LATENCY_TARGET)),
        (&["latency_percentile"], refused(LATENCY_TARGET)),
        (&["latency_run"], refused_unless(ZERO, LATENCY_TARGET)),
        (&["buffer_pattern"], refused(COMPRESSIBLE)),
        (&["buffer_compress_percentage"], refused_unless(ZERO, COMPRESSIBLE)),
        (&["buffer_compress_chunk"], refused(COMPRESSIBLE)),
        (&["dedupe_percentage"], refused_unless(ZERO, COMPRESSIBLE)),
        (&["dedupe_mode"], refused(COMPRESSIBLE)),
        (&["dedupe_working_set_percentage"], refused(COMPRESSIBLE)),
        (&["dedupe_global"], refused_unless(ZERO, COMPRESSIBLE)),
        (&["flow"], refused_unless(ZERO, "jobs are not synchronized here: give each a rate")),
        (&["flow_id"], refused_unless(ZERO, "jobs are not synchronized here: give each a rate")),
        (&["flow_sleep"], refused_unless(ZERO, "jobs are not synchronized here: give each a rate")),
        (&["steadystate", "ss"], refused(STEADY)),
        (&["steadystate_duration", "ss_dur"], refused(STEADY)),
        (&["steadystate_ramp_time", "ss_ramp"], refused(STEADY)),
    ]
};

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn no_key_stands_twice() {
        let names: Vec<_> = KEYS.iter().flat_map(|(names, _)| *names).collect();
        assert_eq!(names.len(), names.iter().collect::<HashSet<_>>().len());
    }

    #[test]
    fn the_page_about_job_files_names_every_key() {
        let page = include_str!("../../../../docs/src/jobs.md");
        let missing: Vec<_> = KEYS
            .iter()
            .flat_map(|(names, _)| *names)
            .filter(|name| !page.contains(&format!("`{name}`")))
            .collect();
        assert!(missing.is_empty(), "{missing:?}");
    }
}
