//! Changes of one logical unit: its size, a snapshot, a compaction, its reservations.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use lunway_block::size::HumanSize;
use lunway_block::spec::DeviceSpec;
use lunway_block::{BlockError, Compaction, CompactionPhase, Permit};
use lunway_target::{
    ChangeError, ChangeOptions, CompactionState, CompactionSummary, Config, DeviceName, IscsiName, LunConfig,
    LunSummary,
};

use super::Manager;
use crate::answer::{Applied, Kind, Line};
use crate::error::{ApiError, refused};
use crate::extract::Ask;

/// Options of a compaction of a logical unit.
pub(crate) struct Orders {
    /// Bytes in a second, at most.
    pub(crate) rate: u64,
    /// The file systems on it are frozen for this long at most, and are asked what is free.
    pub(crate) deadline: Option<Duration>,
}

/// Interval at which to check whether file systems may be thawed.
const MAPPING_POLL: Duration = Duration::from_millis(10);

/// Change that a snapshot makes to the configuration.
#[derive(Clone)]
struct Switch {
    target: IscsiName,
    lun: u16,
    from: DeviceName,
    to: DeviceName,
    /// The new file.
    leaf: PathBuf,
    serial: String,
}

impl Switch {
    fn new(manager: &Manager, target: IscsiName, lun: u16, leaf: &str) -> Result<Self, ApiError> {
        let (_, config) = manager.configuration();
        let from = configured(&config, &target, lun)?.device.clone();
        let mut spec = from.spec().clone();
        let DeviceSpec::Vhdx { path } = spec.leaf_mut() else {
            return Err(ApiError::unprocessable(format!(
                "only a disk in a VHDX file is snapshotted, not {from}; `lunway copy` makes a VHDX of it"
            )));
        };
        *path = manager.source.path(Path::new(leaf));
        let leaf = path.clone();
        let to = spec.to_string().parse().map_err(|error| ApiError::unprocessable(format!("{error}")))?;
        let serial = manager.served(&target, lun).ok_or_else(|| no_lun(&target, lun))?.serial;
        Ok(Self { target, lun, from, to, leaf, serial })
    }
}

impl Manager {
    /// Refuses fewer bytes than a logical unit has, unless it was said that they are meant; and to cut a partition or a
    /// file system, unless that was said as well.
    pub(crate) async fn may_resize(
        &self,
        target: &IscsiName,
        lun: u16,
        size: u64,
        (shrink, force): (bool, bool),
    ) -> Result<(), ApiError> {
        self.is_possible(target, lun, size)?;
        let Some(present) = self.size(target, lun).filter(|present| size < *present) else { return Ok(()) };
        if !shrink {
            return Err(refused(ChangeError::Smaller { target: target.to_string(), lun, present, size }));
        }
        match self.server.cut_off(target.as_str(), lun, size).await.filter(|_| !force) {
            Some(cut) => Err(refused(ChangeError::Cut { target: target.to_string(), lun, cut })),
            None => Ok(()),
        }
    }

    /// Refuses a size that no word allows.
    fn is_possible(&self, target: &IscsiName, lun: u16, size: u64) -> Result<(), ApiError> {
        let sector = self.served(target, lun).map(|lun| lun.sector);
        match sector.filter(|sector| size == 0 || !size.is_multiple_of(u64::from(*sector))) {
            Some(sector) => Err(ApiError::unprocessable(format!(
                "lun {lun} of target {target}: {size} bytes are not whole sectors of {sector} bytes: give a multiple, such as 10G"
            ))),
            None => Ok(()),
        }
    }

    /// The size of a logical unit that is served, bytes.
    fn size(&self, target: &IscsiName, lun: u16) -> Option<u64> {
        self.served(target, lun).map(|lun| lun.size)
    }

    /// A logical unit as it is served.
    fn served(&self, target: &IscsiName, lun: u16) -> Option<LunSummary> {
        let served = self.server.targets().into_iter().find(|served| served.name == target.as_str())?;
        served.luns.into_iter().find(|served| served.id == lun)
    }

    /// Gives the device of a logical unit another size: under another name where the name says the size, else in place.
    pub(crate) async fn resize(
        &self,
        ask: Ask,
        target: IscsiName,
        lun: u16,
        size: u64,
    ) -> Result<Applied, ApiError> {
        let (_, config) = self.configuration();
        let present = configured(&config, &target, lun)?;
        self.is_possible(&target, lun, size)?;
        if let Some(name) = of_size(present.device.spec(), size) {
            let (target, old) = (target.clone(), present.device.clone());
            let edit = move |config: &mut Config| {
                let target = config.targets.iter_mut().find(|present| present.name == target);
                let present =
                    target.and_then(|target| target.luns.iter_mut().find(|present| present.id == lun));
                match present.filter(|present| present.device == old) {
                    Some(present) => present.device = name.clone(),
                    None => {
                        return Err(ApiError::conflict(
                            "another request has changed the logical unit: repeat",
                        ));
                    }
                }
                Ok(())
            };
            return self.change(ask, edit).await;
        }
        let this = self.clone();
        self.carried(move |mut caller| async move {
            caller.unless_gone(this.resize_in_place(ask, &target, lun, size)).await
        })
        .await
    }

    /// Freezes the disk of a logical unit, which goes on in the file `leaf`: the device, the configuration and its file
    /// change together.
    pub(crate) async fn snapshot(
        &self,
        ask: Ask,
        target: IscsiName,
        lun: u16,
        leaf: &str,
    ) -> Result<Applied, ApiError> {
        let switch = Switch::new(self, target, lun, leaf)?;
        let this = self.clone();
        self.carried(move |caller| async move {
            let (asked, permit) = (switch.clone(), caller.permit);
            if ask.dry_run {
                return this.switch(ask, &asked, permit).await;
            }
            let (name, path) = (switch.target.to_string(), switch.leaf.clone());
            let applied = Arc::new(Mutex::new(None));
            let (runtime, result) = (tokio::runtime::Handle::current(), Arc::clone(&applied));
            let changer = this.clone();
            // On a thread of the device, which holds its commands until then.
            let commit = move || {
                let done = runtime.block_on(changer.switch(ask, &switch, permit));
                let refused = done.as_ref().err().map(|error| error.sentence.clone());
                *result.lock().unwrap_or_else(PoisonError::into_inner) = Some(done);
                refused.map_or(Ok(()), |why| Err(BlockError::Snapshot { why }))
            };
            let made = this.server.snapshot_lun(&name, lun, &path, Box::new(commit)).await;
            let applied = applied.lock().unwrap_or_else(PoisonError::into_inner).take();
            match (made, applied) {
                // What the configuration's own refusal says is no news to the device.
                (_, Some(Err(error))) => Err(error),
                (Ok(()), Some(Ok(applied))) => Ok(applied),
                (Err(error), _) => Err(refused(error)),
                (Ok(()), None) => {
                    Err(ApiError::internal("the snapshot was made without a commit".to_owned()))
                }
            }
        })
        .await
    }

    /// Begins to compact the file of a logical unit. Of file systems that are frozen it answers when they may be
    /// thawed.
    pub(crate) async fn compact(
        &self,
        target: IscsiName,
        lun: u16,
        orders: Orders,
    ) -> Result<CompactionSummary, ApiError> {
        let this = self.clone();
        self.to_its_end(async move {
            let task = match orders.deadline {
                Some(_) => Compaction::new(orders.rate).of_frozen(),
                None => Compaction::new(orders.rate),
            };
            let task = Arc::new(task);
            this.server.compact_lun(target.as_str(), lun, &task).await.map_err(refused)?;
            let mapped = async {
                while task.progress().phase == CompactionPhase::Mapping {
                    tokio::time::sleep(MAPPING_POLL).await;
                }
            };
            if tokio::time::timeout(orders.deadline.unwrap_or(Duration::MAX), mapped).await.is_err() {
                task.cancel();
                return Err(ApiError::unprocessable(
                    "the free space was not found within the deadline, so nothing was dropped: allow the file systems to be \
                     frozen for longer"
                        .to_owned(),
                ));
            }
            let summary = this.compaction(&target, lun).await?;
            match (summary.state, &summary.error) {
                (CompactionState::Failed, Some(why)) => Err(ApiError::unprocessable(why.clone())),
                _ => Ok(summary),
            }
        })
        .await
    }

    /// The last compaction of a logical unit.
    pub(crate) async fn compaction(
        &self,
        target: &IscsiName,
        lun: u16,
    ) -> Result<CompactionSummary, ApiError> {
        let summary = self.server.compaction(target.as_str(), lun).await.map_err(refused)?;
        summary.ok_or_else(|| {
            ApiError::not_found(format!(
                "lun {lun} of target {target} has not been compacted since it is served"
            ))
        })
    }

    /// Says in the configuration that a logical unit is another file now.
    async fn switch(&self, ask: Ask, switch: &Switch, permit: Permit) -> Result<Applied, ApiError> {
        let switched = Some((switch.target.as_str(), switch.lun));
        let persist = Some(self.persist());
        let options = ChangeOptions { permit, persist, switched, ..ChangeOptions::default() };
        let source = Arc::clone(&self.source);
        let edit = |config: &mut Config| {
            let old = config.clone();
            let lun = config
                .targets
                .iter_mut()
                .find(|target| target.name == switch.target)
                .and_then(|target| target.luns.iter_mut().find(|lun| lun.id == switch.lun))
                .filter(|lun| lun.device == switch.from)
                .ok_or_else(|| ApiError::conflict("another request has changed the logical unit: repeat"))?;
            lun.device = switch.to.clone();
            // It is made of the file's name otherwise.
            lun.serial = Some(switch.serial.clone());
            match source.keeps(&old, config) {
                true => Ok(()),
                false => Err(ApiError::conflict(
                    "the snapshot must be recorded in the daemon's configuration file, and this logical unit is not in one: start \
                     the daemon with one",
                )),
            }
        };
        self.apply(ask, edit, options).await
    }

    /// Removes every registration and reservation of a logical unit.
    pub(crate) async fn clear_reservations(&self, target: IscsiName, lun: u16) -> Result<(), ApiError> {
        let server = Arc::clone(&self.server);
        self.to_its_end(async move { server.clear_reservations(target.as_str(), lun).await.map_err(refused) })
            .await
    }

    async fn resize_in_place(
        &self,
        ask: Ask,
        target: &IscsiName,
        lun: u16,
        size: u64,
    ) -> Result<Applied, ApiError> {
        let generation = self.server.generation();
        if let Some(expected) = ask.generation.filter(|expected| *expected != generation) {
            return Err(refused(ChangeError::Generation { expected, is: generation }));
        }
        let served = self.served(target, lun);
        let old = served.as_ref().map(|served| served.size);
        let (mut changes, mut effects) = (Vec::new(), Vec::new());
        if let Some(space) = served.and_then(|served| served.space) {
            let (most, left) = (size.saturating_sub(space.allocated), space.available);
            if old.is_some_and(|old| size > old) && most > left {
                effects.push(format!(
                    "target {target}, lun {lun}: the backing store has {} left, and the disk may take {} more: writes fail once it is full",
                    HumanSize(left),
                    HumanSize(most)
                ));
            }
        }
        if old.is_some_and(|old| size < old) {
            let are = if ask.dry_run { "would be" } else { "are" };
            effects.push(format!(
                "target {target}, lun {lun}: the data beyond {} {are} destroyed",
                HumanSize(size)
            ));
        }
        if old == Some(size) {
            self.is_whole(ask, target, lun, size).await?;
        } else {
            if !ask.end_snapshots {
                self.server.keeps_snapshots(target.as_str(), lun, size).await.map_err(refused)?;
            }
            self.server.has_its_end(target.as_str(), lun, size).await.map_err(refused)?;
            if !ask.dry_run {
                let resized = self.server.resize_lun(target.as_str(), lun, size, ask.end_snapshots).await;
                resized.map_err(refused)?;
            }
            let place = format!("target {target}, lun {lun}");
            let text = format!("~ {place}: size: {}", sizes(old, size));
            let (key, from, to) =
                (Some("size".to_owned()), old.map(|old| old.to_string()), Some(size.to_string()));
            changes.push(Line { kind: Kind::Changed, place, key, from, to, text });
        }
        // The device itself keeps its size.
        Ok(Applied { generation, dry_run: ask.dry_run, persisted: !ask.dry_run, changes, effects })
    }

    /// Refuses to say that there is nothing to change where the file behind a logical unit is not what it was.
    async fn is_whole(&self, ask: Ask, target: &IscsiName, lun: u16, size: u64) -> Result<(), ApiError> {
        let (_, config) = self.configuration();
        let (lun_config, served) = (configured(&config, target, lun)?, self.served(target, lun));
        let is_file = matches!(lun_config.device.spec().leaf(), DeviceSpec::File { .. });
        let read_only = lun_config.read_only || served.is_some_and(|served| served.read_only);
        if is_file && !read_only && !ask.dry_run {
            // The device looks at its file, and changes nothing.
            self.server.resize_lun(target.as_str(), lun, size, false).await.map_err(refused)?;
        }
        match self.served(target, lun).and_then(|served| served.lost_file) {
            Some(why) => Err(ApiError::conflict(format!("target {target}, lun {lun}: {why}"))),
            None => Ok(()),
        }
    }
}

/// A logical unit in a configuration.
fn configured<'c>(config: &'c Config, target: &IscsiName, lun: u16) -> Result<&'c LunConfig, ApiError> {
    let of = config.target(target.as_str());
    let of = of.ok_or_else(|| ApiError::not_found(format!("there is no target {target}")))?;
    of.lun(lun).ok_or_else(|| no_lun(target, lun))
}

fn no_lun(target: &IscsiName, lun: u16) -> ApiError {
    ApiError::not_found(format!("there is no lun {lun} of target {target}"))
}

/// The name of a memory device with another size; `None` for devices whose names say none.
fn of_size(spec: &DeviceSpec, size: u64) -> Option<DeviceName> {
    let mut spec = spec.clone();
    match spec.leaf_mut() {
        DeviceSpec::Ram { size: named } | DeviceSpec::Null { size: named } => *named = size,
        _ => return None,
    }
    spec.to_string().parse().ok()
}

/// Two sizes for people, in bytes where they differ by less than is shown otherwise.
fn sizes(old: Option<u64>, new: u64) -> String {
    let Some(old) = old else { return HumanSize(new).to_string() };
    let (from, to) = (HumanSize(old).to_string(), HumanSize(new).to_string());
    if from == to { format!("{old} -> {new} bytes") } else { format!("{from} -> {to}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_resize_is_told_in_units_unless_they_hide_it() {
        assert_eq!(sizes(Some(10 << 30), 200 << 30), "10 GiB -> 200 GiB");
        assert_eq!(sizes(Some(10 << 30), (10 << 30) + 512), "10737418240 -> 10737418752 bytes");
    }

    #[test]
    fn memory_gets_another_name_with_another_size() {
        for (old, new) in
            [("ram:1G", Some("ram:2M")), ("delay:1ms:null:1G", Some("delay:1ms:null:2M")), ("/a", None)]
        {
            let spec = DeviceSpec::parse(old).unwrap();
            assert_eq!(of_size(&spec, 2 << 20).map(|name| name.to_string()).as_deref(), new);
        }
    }
}
