//! Claims of changes on logical units whose disks they wait for.

use lunway_block::spec::DeviceSpec;
use tokio::sync::watch;

use crate::config::LunConfig;

/// A logical unit, and the device behind it, that a change opens or closes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Claim {
    target: String,
    lun: u16,
    /// Device that no two logical units can have open at once; `None` for memory, which every logical unit has of its
    /// own.
    device: Option<String>,
}

/// All claims of changes under way.
///
/// Changes take their turns for an instant each. What takes longer (a device is opened or closed) happens between the
/// turns, and a claim keeps other changes from the same logical units and devices meanwhile, but from no others.
#[derive(Clone, Debug, Default)]
pub(super) struct Claims {
    held: watch::Sender<Vec<Claim>>,
}

/// Claims that end when this is dropped.
#[derive(Debug)]
pub(super) struct Claimed {
    held: watch::Sender<Vec<Claim>>,
    claims: Vec<Claim>,
}

impl Claim {
    pub(super) fn of(target: &str, config: &LunConfig) -> Self {
        let device = match config.device.spec().leaf() {
            DeviceSpec::Ram { .. } | DeviceSpec::Null { .. } => None,
            // By whatever format it is opened.
            DeviceSpec::File { path, .. } | DeviceSpec::Vhdx { path } | DeviceSpec::Image { path, .. } => {
                Some(path.display().to_string())
            }
            other => Some(other.to_string()),
        };
        Self { target: target.to_owned(), lun: config.id, device }
    }

    fn excludes(&self, other: &Self) -> bool {
        (self.target == other.target && self.lun == other.lun)
            || (self.device.is_some() && self.device == other.device)
    }
}

impl Claims {
    /// Claims all of these, if no other claim excludes one of them.
    pub(super) fn claim(&self, claims: Vec<Claim>) -> Option<Claimed> {
        let claimed = self.held.send_if_modified(|held| {
            let free = are_free(&claims, held);
            if free {
                held.extend_from_slice(&claims);
            }
            free
        });
        claimed.then(|| Claimed { held: self.held.clone(), claims })
    }

    /// Claims all of these, whatever claims there are: those who have one see when it is their turn what has become of
    /// it.
    pub(super) fn claim_beside(&self, claims: Vec<Claim>) -> Claimed {
        self.held.send_modify(|held| held.extend_from_slice(&claims));
        Claimed { held: self.held.clone(), claims }
    }

    /// Waits until no claim excludes any of these.
    pub(super) async fn released(&self, claims: &[Claim]) {
        // The sender lives as long as `self`.
        let _ = self.held.subscribe().wait_for(|held| are_free(claims, held)).await;
    }
}

fn are_free(claims: &[Claim], held: &[Claim]) -> bool {
    !claims.iter().any(|claim| held.iter().any(|other| claim.excludes(other)))
}

impl Drop for Claimed {
    fn drop(&mut self) {
        self.held.send_modify(|held| {
            for claim in &self.claims {
                if let Some(at) = held.iter().position(|other| other == claim) {
                    held.swap_remove(at);
                }
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claim(target: &str, lun: u16, device: &str) -> Claim {
        Claim::of(target, &LunConfig::new(lun, device.parse().unwrap()))
    }

    #[test]
    fn a_claim_excludes_the_same_logical_unit_and_the_same_file_and_nothing_else() {
        let claims = Claims::default();
        let held = claims.claim(vec![claim("t", 1, "/disk"), claim("t", 2, "ram:1M")]).unwrap();
        for excluded in [claim("t", 1, "/other"), claim("u", 7, "raw:/disk"), claim("t", 2, "ram:2M")] {
            assert!(claims.claim(vec![claim("u", 8, "/free"), excluded.clone()]).is_none(), "{excluded:?}");
        }
        let beside = claims.claim_beside(vec![claim("t", 1, "/disk")]);
        assert!(claims.claim(vec![claim("u", 2, "ram:1M"), claim("t", 3, "/third")]).is_some());
        drop(held);
        assert!(claims.claim(vec![claim("t", 1, "/disk")]).is_none(), "one claim is left");
        drop(beside);
        assert!(claims.claim(vec![claim("t", 1, "/disk")]).is_some());
    }
}
