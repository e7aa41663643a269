//! The storage's side of a plan.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use lunway_block::duration::HumanTime;
use lunway_initiator::{IscsiUrl, SessionOptions, TargetRecord};
use tokio::time::timeout;

use crate::address::{MultipathUrl, PortalName};
use crate::open_error::PathsOpenError;
use lunway_multipath::plan::Portal;

/// For the answer to a host's name.
const RESOLVE_TIME: Duration = Duration::from_secs(5);

/// The portals that were named; where only one was, all that the target tells of.
pub(crate) async fn find(
    url: &MultipathUrl,
    options: &SessionOptions,
) -> Result<Vec<Portal>, PathsOpenError> {
    if url.portals.is_empty() {
        let told = told(url, options).await?;
        if !told.is_empty() {
            return Ok(told);
        }
    }
    named(url).await
}

/// Returns the portals that were named. A portal whose host has no address now is left out, if there is another.
async fn named(url: &MultipathUrl) -> Result<Vec<Portal>, PathsOpenError> {
    let first = PortalName { host: url.base.host.clone(), port: url.base.port, target: None };
    let (mut portals, mut failure) = (Vec::new(), None);
    for name in std::iter::once(&first).chain(&url.portals) {
        match resolve(&name.host, name.port, url.from.first().copied()).await {
            Ok(address) => {
                let target = url.own_name(name);
                add(&mut portals, Portal { address, target, group: None, named: true });
            }
            Err(error) => {
                tracing::warn!("a portal is left out: {error}");
                failure = Some(error);
            }
        }
    }
    match failure {
        Some(error) if portals.is_empty() => Err(error),
        _ => Ok(portals),
    }
}

/// Returns the portals that the target reports (SendTargets), asked from one local address after the other.
async fn told(url: &MultipathUrl, options: &SessionOptions) -> Result<Vec<Portal>, PathsOpenError> {
    let mut from = url.from.iter().copied().map(Some).collect::<Vec<_>>();
    if from.is_empty() {
        from.push(None);
    }
    let mut outcome = Ok(Vec::new());
    for from in from {
        let base = IscsiUrl { from, ..url.base.clone() };
        outcome = lunway_initiator::discover(&base, options).await;
        if outcome.is_ok() {
            break;
        }
    }
    let found = outcome.map_err(|source| PathsOpenError::Discover { device: url.to_string(), source })?;
    let mut portals = Vec::new();
    for (address, group) in of_target(&found, url.base.target.as_deref().unwrap_or_default()) {
        let Ok((host, port)) = IscsiUrl::parse_portal(address) else { continue };
        // A name that nothing resolves is one portal less.
        let Ok(address) = resolve(&host, port, None).await else { continue };
        if is_reachable(address.ip()) {
            add(&mut portals, Portal { address, target: None, group: Some(*group), named: false });
        }
    }
    Ok(portals)
}

/// Returns `true` if an address is meaningful to a machine other than the one that reported it.
fn is_reachable(ip: IpAddr) -> bool {
    let link_local = match ip {
        IpAddr::V4(ip) => ip.is_link_local(),
        IpAddr::V6(ip) => ip.is_unicast_link_local(),
    };
    !ip.is_unspecified() && !link_local
}

fn add(portals: &mut Vec<Portal>, portal: Portal) {
    let is_it = |known: &Portal| known.address == portal.address && known.target == portal.target;
    if !portals.iter().any(is_it) {
        portals.push(portal);
    }
}

fn of_target<'a>(found: &'a [TargetRecord], target: &str) -> &'a [(String, u16)] {
    let record = found.iter().find(|record| record.name.eq_ignore_ascii_case(target));
    record.map_or(&[], |record| &record.addresses)
}

/// The first address of a host, of the family of `from` where that is given.
pub(crate) async fn resolve(
    host: &str,
    port: u16,
    from: Option<IpAddr>,
) -> Result<SocketAddr, PathsOpenError> {
    let failed = |why: String| PathsOpenError::Resolve { host: host.to_owned(), why };
    let found: Vec<SocketAddr> = match timeout(RESOLVE_TIME, tokio::net::lookup_host((host, port))).await {
        Ok(Ok(addresses)) => addresses.collect(),
        Ok(Err(error)) => return Err(failed(error.to_string())),
        Err(_) => {
            return Err(failed(format!("the resolver did not answer within {}", HumanTime(RESOLVE_TIME))));
        }
    };
    let fits = |address: &&SocketAddr| from.is_none_or(|from| from.is_ipv4() == address.is_ipv4());
    found.iter().find(fits).copied().ok_or_else(|| failed("it has no address".to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_addresses_of_the_target_itself_that_mean_something_here_are_portals() {
        let record = |name: &str, addresses: &[&str]| TargetRecord {
            name: name.to_owned(),
            addresses: addresses.iter().map(|address| ((*address).to_owned(), 1)).collect(),
        };
        let found = [record("iqn.x:a", &["192.0.2.1:3260"]), record("iqn.x:b", &["192.0.2.2:3260"])];
        assert_eq!(of_target(&found, "iqn.x:B"), [("192.0.2.2:3260".to_owned(), 1)]);
        assert!(of_target(&found, "iqn.x:c").is_empty());
        let reachable = |ip: &str| ip.parse().is_ok_and(is_reachable);
        assert!(reachable("192.0.2.1") && reachable("127.0.0.1") && reachable("2001:db8::1"));
        assert!(!reachable("0.0.0.0") && !reachable("169.254.1.1") && !reachable("fe80::1"));
    }
}
