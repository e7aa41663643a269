//! The key of a repository: out of its marker, or out of the one that its user has kept where what lies in the folder
//! was changed without the key, or put back.

use std::collections::BTreeSet;
use std::path::PathBuf;

use lunway_backup::{BackupError, Folder, Result, is_of_the_file};

use crate::codec::{Codec, MasterKey};
use crate::keys::Identity;
use crate::marker::{Descent, MARKER, MARKER_COPY, Marker};
use crate::pin::Pins;

/// Recipients that a sentence names.
const NAMED_MAX: usize = 8;

/// The repository's key, out of a marker that is wrapped for one of these; `None`: it is not encrypted.
pub(crate) fn unlock(
    folder: &dyn Folder,
    marker: &Marker,
    identities: &[Identity],
    pins: Option<&Pins>,
) -> Result<Option<MasterKey>> {
    if !marker.encrypted {
        return Ok(None);
    }
    let pairs = marker.keys.iter().flat_map(|key| identities.iter().map(move |own| (key, own)));
    let Some(master) = pairs.filter_map(|(key, own)| key.unwrap(own)).next() else {
        let (shown, count) = (folder.show(""), marker.keys.len());
        let recipients = if count == 1 { "recipient" } else { "recipients" };
        return Err(BackupError::Locked(match identities {
            [] => format!(
                "{shown} is encrypted for {count} {recipients}: name the file with the secret key of one"
            ),
            _ => format!(
                "{shown} is encrypted for {count} {recipients}, and the key given is none of theirs: name the file with \
                 another"
            ),
        }));
    };
    match marker.is_authentic(&Codec::encrypted(&master)) {
        true => Ok(Some(master)),
        false => Err(unauthentic(folder, pins)),
    }
}

/// `pins`: where what this user has kept of the marker is the way back.
pub(crate) fn unauthentic(folder: &dyn Folder, pins: Option<&Pins>) -> BackupError {
    BackupError::Refused(format!(
        "{} was changed by somebody who does not have the repository's key: put an older copy of it back{}",
        folder.show(MARKER),
        pins.map(Pins::way_back).unwrap_or_default()
    ))
}

/// A marker that this user has kept.
pub(crate) struct Restored {
    pub(crate) file: PathBuf,
    pub(crate) marker: Marker,
    pub(crate) master: Option<MasterKey>,
    /// What lies in the folder led to it, and was put back.
    pub(crate) is_older: bool,
}

/// What the marker that was kept says of the one in the folder.
pub(crate) enum Judged {
    /// Nothing, or that it is the same or a later one.
    Unknown,
    /// The kept one is to be used.
    Restored(Restored),
    /// An older one was put back, and changed since: a sentence. The kept one is to be used where that is not for this
    /// user.
    Apart(String, Restored),
}

/// Compares a marker with the one that was kept of the same repository.
pub(crate) fn judge(
    folder: &dyn Folder,
    pins: &Pins,
    marker: &Marker,
    master: Option<&MasterKey>,
) -> Result<Judged> {
    let Some(key) = master else { return Ok(Judged::Unknown) };
    let codec = Codec::encrypted(key);
    let is_same =
        |kept: &Marker| kept.repository == marker.repository && kept.is_sealed() && kept.is_authentic(&codec);
    let Some((file, kept)) = pins.markers()?.into_iter().find(|(_, kept)| is_same(kept)) else {
        return Ok(Judged::Unknown);
    };
    let what = apart(folder, &file.display().to_string(), marker, &kept);
    let descent = marker.descent(&kept);
    let restored = Restored { file, marker: kept, master: master.cloned(), is_older: true };
    Ok(match descent {
        Descent::Same | Descent::Later => Judged::Unknown,
        Descent::Earlier => Judged::Restored(restored),
        Descent::Apart => Judged::Apart(what, restored),
    })
}

/// `file`: where the marker is that this user has kept.
pub(crate) fn apart(folder: &dyn Folder, file: &str, marker: &Marker, kept: &Marker) -> String {
    let [shown, copy] = [MARKER, MARKER_COPY].map(|name| folder.show(name));
    let names = |marker: &Marker| -> BTreeSet<String> {
        marker.keys.iter().map(|key| key.recipient.clone()).collect()
    };
    let (now, before) = (names(marker), names(kept));
    let listed = |names: Vec<&String>| {
        let all: Vec<&str> = names.iter().take(NAMED_MAX).map(|name| name.as_str()).collect();
        let more = names.len().saturating_sub(all.len());
        all.join(", ") + &if more > 0 { format!(" and {more} more") } else { String::new() }
    };
    let (added, lacking): (Vec<_>, Vec<_>) =
        (now.difference(&before).collect(), before.difference(&now).collect());
    let mut keys = Vec::new();
    if !added.is_empty() {
        keys.push(format!("it is encrypted for {}, for whom the kept one is not", listed(added)));
    }
    if !lacking.is_empty() {
        keys.push(format!("it is not encrypted for {}, for whom the kept one is", listed(lacking)));
    }
    if keys.is_empty() {
        keys.push("both are encrypted for the same recipients".into());
    }
    format!(
        "{shown} is not a later state of the one that this user has kept, {file}: an older one was put back, and its keys were \
         changed since; {}; nothing is written until that is settled: remove {file} if it is right as it is now, or copy \
         that file to {shown} and {copy}",
        keys.join("; ")
    )
}

/// The marker that was kept, where no marker in the folder can be used, if these are not of another repository: nothing
/// of them was written with the key of this one, or what was is older.
pub(crate) fn unchanged(folder: &dyn Folder, pins: &Pins, identities: &[Identity]) -> Result<Judged> {
    let mut there = Vec::new();
    for name in [MARKER, MARKER_COPY] {
        match Marker::read(folder, name) {
            Ok(marker) => there.push(marker),
            Err(BackupError::Folder { source, .. }) if !is_of_the_file(source.kind()) => {
                return Ok(Judged::Unknown);
            }
            Err(_) => {}
        }
    }
    let kept = pins.markers()?;
    // Of several disks that are changed by turns nothing says which one this is.
    if there.is_empty() && kept.len() > 1 {
        return Ok(Judged::Unknown);
    }
    for (file, marker) in kept {
        if there.iter().any(|there| there.repository != marker.repository) {
            continue;
        }
        let Ok(master) = unlock(folder, &marker, identities, None) else { continue };
        let is_ours = |there: &Marker| match &master {
            Some(key) => there.is_sealed() && there.is_authentic(&Codec::encrypted(key)),
            None => true,
        };
        if pins.check(&marker, master.as_ref()).is_err() {
            continue;
        }
        // What was written with the key is not for this user: it counts, unless it was put back.
        let ours: Vec<&Marker> = there.iter().filter(|there| is_ours(there)).collect();
        let is =
            |wanted: &[Descent]| ours.iter().copied().find(|ours| wanted.contains(&ours.descent(&marker)));
        if is(&[Descent::Same, Descent::Later]).is_some() {
            continue;
        }
        let what =
            is(&[Descent::Apart]).map(|found| apart(folder, &file.display().to_string(), found, &marker));
        let restored = Restored { is_older: !ours.is_empty(), file, marker, master };
        return Ok(match what {
            Some(what) => Judged::Apart(what, restored),
            None => Judged::Restored(restored),
        });
    }
    Ok(Judged::Unknown)
}
