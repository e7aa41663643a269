//! Rules about a Windows machine, as `contrib/doctor-windows.ps1` collects it.

use std::collections::BTreeSet;

use lunway_block::Severity;

use super::{Group, Rule};
use crate::facts::{Facts, Windows, WindowsPort};
use crate::seen::Seen;
use crate::verdict::{Outcome, Verdict};

const ALL: &str = "facts of a Windows machine (--from)";

const MPIO: &str = "Set-MPIOSetting";

pub(super) const RULES: &[Rule] = &[
    Rule {
        id: "windows-verify",
        group: Group::Windows,
        title: "MPIO verifies its paths every 30 s or less",
        severity: Severity::Warning,
        applies: ALL,
        why: "without verification, the failure of an idle path is detected only by the next I/O; the period is 30 s by default",
        source: "Microsoft: MPIO timers, PathVerifyEnabled (default 0) and PathVerificationPeriod (default 30)",
        thumbs: &[15],
        fix: "Set-MPIOSetting -NewPathVerificationState Enabled -NewPathVerificationPeriod 30",
        undo: "Set-MPIOSetting -NewPathVerificationState {state} -NewPathVerificationPeriod {period}",
        check: |facts| {
            mpio(facts, &["PathVerifyEnabled", "PathVerificationPeriod"], |values| {
                let what = format!("path verification is {}, every {} s", values[0], values[1]);
                Outcome::judged(values[0] == 1 && values[1] <= 30, Verdict::Warn, MPIO, what)
                    .with("state", if values[0] == 1 { "Enabled" } else { "Disabled" })
                    .with("period", values[1])
            })
        },
    },
    Rule {
        id: "windows-remove",
        group: Group::Windows,
        title: "A disk whose paths are all lost is kept for 20 s or more",
        severity: Severity::Warning,
        applies: ALL,
        why: "Windows removes the disk before a path is back, and open files on it are lost: after 20 s by default, and Ceph \
              advises 120 s",
        source: "Microsoft: PDORemovePeriod, default 20 s; Ceph's iSCSI guide 120 s",
        thumbs: &[15],
        fix: "Set-MPIOSetting -NewPDORemovePeriod 120",
        undo: "Set-MPIOSetting -NewPDORemovePeriod {old}",
        check: |facts| {
            mpio(facts, &["PDORemovePeriod"], |values| {
                let what = format!("a disk without paths is removed after {} s", values[0]);
                Outcome::judged(values[0] >= 20, Verdict::Warn, MPIO, what).with("old", values[0])
            })
        },
    },
    Rule {
        id: "windows-retry",
        group: Group::Windows,
        title: "MPIO sends failed I/O again, three times a second apart, before the disk is removed",
        severity: Severity::Note,
        applies: ALL,
        why: "retries that last longer than PDORemovePeriod are never made: 3 retries of 1 s fit in 20 s",
        source: "Microsoft: RetryCount 3, RetryInterval 1",
        thumbs: &[15],
        fix: "Set-MPIOSetting -NewRetryCount 3 -NewRetryInterval 1",
        undo: "Set-MPIOSetting -NewRetryCount {count} -NewRetryInterval {interval}",
        check: |facts| {
            mpio(facts, &["RetryCount", "RetryInterval", "PDORemovePeriod"], |values| {
                let (count, interval, remove) = (values[0], values[1], values[2]);
                let sound = count >= 3 && interval >= 1 && count.saturating_mul(interval) < remove;
                let what =
                    format!("{count} retries {interval} s apart, and the disk is removed after {remove} s");
                Outcome::judged(sound, Verdict::Warn, MPIO, what)
                    .with("count", count)
                    .with("interval", interval)
            })
        },
    },
    Rule {
        id: "windows-claim",
        group: Group::Windows,
        title: "MPIO claims iSCSI disks",
        severity: Severity::Warning,
        applies: "Windows machines with two or more sessions to one target",
        why: "without a claim the disk appears once for each path, and both copies can be written (no published figure)",
        source: "Microsoft: Enable-MSDSMAutomaticClaim -BusType iSCSI",
        thumbs: &[2, 15],
        fix: "Enable-MSDSMAutomaticClaim -BusType iSCSI    # and restart",
        undo: "Disable-MSDSMAutomaticClaim -BusType iSCSI",
        check: |facts| {
            windows(facts, |windows| {
                let sessions = windows.sessions.get().map_or(&[][..], Vec::as_slice);
                let targets: BTreeSet<_> = sessions.iter().map(|session| &session.target).collect();
                if !sessions.is_empty() && targets.len() == sessions.len() {
                    return Vec::new();
                }
                vec![known(&windows.claims_iscsi, "MPIO", |claims| {
                    let what = if *claims { "claims" } else { "does not claim" };
                    Outcome::judged(*claims, Verdict::Bad, "MPIO", format!("MPIO {what} iSCSI disks"))
                })]
            })
        },
    },
    Rule {
        id: "windows-policy",
        group: Group::Windows,
        title: "MPIO's default policy was chosen: least queue depth, or failover only for a passive path",
        severity: Severity::Warning,
        applies: ALL,
        why: "the default can be the worst: a full mesh under round robin lost 90 % of the read and 96 % of the write speed",
        source: "published tests of multipath topologies, test B",
        thumbs: &[15],
        fix: "Set-MSDSMGlobalDefaultLoadBalancePolicy -Policy LQD",
        undo: "Set-MSDSMGlobalDefaultLoadBalancePolicy -Policy {old}",
        check: |facts| {
            windows(facts, |windows| {
                vec![known(&windows.policy, "MPIO's policy", |policy| {
                    let sound = matches!(policy.as_str(), "LQD" | "FOO" | "RR" | "LB");
                    let what = format!("MPIO's default policy is {policy}");
                    Outcome::judged(sound, Verdict::Warn, "MPIO", what).with("old", policy)
                })]
            })
        },
    },
    Rule {
        id: "windows-disk-timeout",
        group: Group::Windows,
        title: "Windows waits 60 s or more for a disk",
        severity: Severity::Warning,
        applies: ALL,
        why: "a restart of the storage takes longer than the default of 30 to 60 s, and NTFS reports delayed writes as lost",
        source: "Microsoft: TimeOutValue below Services\\Disk",
        thumbs: &[1],
        fix: "Set-ItemProperty HKLM:\\SYSTEM\\CurrentControlSet\\Services\\Disk TimeOutValue 60    # and restart",
        undo: "Set-ItemProperty HKLM:\\SYSTEM\\CurrentControlSet\\Services\\Disk TimeOutValue {old}",
        check: |facts| {
            windows(facts, |windows| {
                vec![known(&windows.disk_timeout, "the disk's time-out", |seconds| {
                    let what = format!("Windows waits {seconds} s for a disk");
                    Outcome::judged(*seconds >= 60, Verdict::Warn, "TimeOutValue", what).with("old", seconds)
                })]
            })
        },
    },
    Rule {
        id: "windows-initiator",
        group: Group::Windows,
        title: "The initiator gives up a link after 15 s, and holds requests for 60 s",
        severity: Severity::Warning,
        applies: ALL,
        why: "LinkDownTime is how long multipath waits before it may use another path; MaxRequestHoldTime how long a disk without \
              multipath survives: 15 s and 60 s by default",
        source: "Microsoft: LinkDownTime default 15, MaxRequestHoldTime default 60",
        thumbs: &[15],
        fix: "$key = (Get-ChildItem 'HKLM:\\SYSTEM\\CurrentControlSet\\Control\\Class\\{4D36E97B-E325-11CE-BFC1-08002BE10318}' \
              -ErrorAction SilentlyContinue | Where-Object { $_.GetValue('DriverDesc') -eq 'Microsoft iSCSI Initiator' }).PSPath + \
              '\\Parameters'; Set-ItemProperty $key LinkDownTime {new_link} -Type DWord; Set-ItemProperty $key MaxRequestHoldTime {new_hold} \
              -Type DWord    # and restart",
        undo: "$key = (Get-ChildItem 'HKLM:\\SYSTEM\\CurrentControlSet\\Control\\Class\\{4D36E97B-E325-11CE-BFC1-08002BE10318}' \
               -ErrorAction SilentlyContinue | Where-Object { $_.GetValue('DriverDesc') -eq 'Microsoft iSCSI Initiator' }).PSPath + \
               '\\Parameters'; Set-ItemProperty $key LinkDownTime {link} -Type DWord; Set-ItemProperty $key MaxRequestHoldTime {hold} \
               -Type DWord    # and restart",
        check: |facts| {
            windows(facts, |windows| {
                vec![known(&windows.initiator, "the initiator's parameters", |values| {
                    let value = |name: &str, default: u64| values.get(name).copied().unwrap_or(default);
                    let (link, hold) = (value("LinkDownTime", 15), value("MaxRequestHoldTime", 60));
                    let what = format!("LinkDownTime is {link} s, MaxRequestHoldTime {hold} s");
                    let sound = link <= 15 && hold >= 60;
                    Outcome::judged(sound, Verdict::Warn, "iSCSI initiator", what)
                        .with("link", link)
                        .with("hold", hold)
                        .with("new_link", link.min(15))
                        .with("new_hold", hold.max(60))
                })]
            })
        },
    },
    Rule {
        id: "windows-ack",
        group: Group::Windows,
        title: "Storage ports acknowledge at once: TcpAckFrequency 1, TCPNoDelay 1",
        severity: Severity::Warning,
        applies: ALL,
        why: "a delayed acknowledgement holds small I/O for 200 ms, so that a queue depth of one makes 5 I/Os a second at worst",
        source: "Microsoft: TcpAckFrequency; VMware and Dell guides for iSCSI",
        thumbs: &[14],
        fix: "$key = 'HKLM:\\SYSTEM\\CurrentControlSet\\Services\\Tcpip\\Parameters\\Interfaces\\' + (Get-NetAdapter -Name \
              {port}).InterfaceGuid; Set-ItemProperty $key TcpAckFrequency 1 -Type DWord; Set-ItemProperty $key TCPNoDelay 1 -Type DWord    # \
              and restart",
        undo: "$key = 'HKLM:\\SYSTEM\\CurrentControlSet\\Services\\Tcpip\\Parameters\\Interfaces\\' + (Get-NetAdapter -Name \
               {port}).InterfaceGuid; Remove-ItemProperty $key TcpAckFrequency; Remove-ItemProperty $key TCPNoDelay    # and restart",
        check: |facts| {
            ports(facts, |port| match (port.tcp_ack_frequency.known(), port.tcp_no_delay.known()) {
                (Ok(frequency), Ok(no_delay)) => {
                    let what = format!("{}: TcpAckFrequency {frequency}, TCPNoDelay {no_delay}", port.name);
                    let values =
                        [("TcpAckFrequency", *frequency, ACK_FREQUENCY), ("TCPNoDelay", *no_delay, NO_DELAY)];
                    // What is 1 already stays 1 when the fix is undone, and a default is a value that is not there.
                    let wrong = || values.iter().filter(|(_, value, _)| *value != 1);
                    let set = |(name, _, _): &(&str, u64, u64)| {
                        format!("; Set-ItemProperty $key {name} 1 -Type DWord")
                    };
                    let back = |(name, value, default): &(&str, u64, u64)| match value == default {
                        true => format!("; Remove-ItemProperty $key {name}"),
                        false => format!("; Set-ItemProperty $key {name} {value} -Type DWord"),
                    };
                    let fix = wrong().map(set).collect::<String>();
                    let undo = wrong().map(back).collect::<String>();
                    Outcome::judged(*frequency == 1 && *no_delay == 1, Verdict::Warn, &port.name, what)
                        .fixed_by(
                            format!("{INTERFACE}{fix}    # and restart"),
                            format!("{INTERFACE}{undo}    # and restart"),
                        )
                }
                (Err(why), _) | (_, Err(why)) => {
                    Outcome::unknown(&port.name, format!("{}: {why}", port.name))
                }
            })
        },
    },
    Rule {
        id: "windows-power",
        group: Group::Windows,
        title: "Windows may not switch a storage port off to save power",
        severity: Severity::Warning,
        applies: ALL,
        why: "the port is switched off when it is idle, and every session over it is lost (no published figure)",
        source: "Microsoft: Set-NetAdapterPowerManagement, and article 2740020; Dell's iSCSI guide",
        thumbs: &[14],
        fix: "$power = Get-NetAdapterPowerManagement -Name {port}; $power.AllowComputerToTurnOffDevice = 'Disabled'; $power | \
              Set-NetAdapterPowerManagement",
        undo: "$power = Get-NetAdapterPowerManagement -Name {port}; $power.AllowComputerToTurnOffDevice = 'Enabled'; $power | \
               Set-NetAdapterPowerManagement",
        check: |facts| {
            ports(facts, |port| {
                known_of(port, &port.power_saving, |on| {
                    let what = if *on { "may be switched off" } else { "stays on" };
                    Outcome::judged(!*on, Verdict::Warn, &port.name, format!("{} {what}", port.name))
                })
            })
        },
    },
    Rule {
        id: "windows-dns",
        group: Group::Windows,
        title: "A storage port does not register in DNS",
        severity: Severity::Note,
        applies: ALL,
        why: "clients find the server by its storage address, and their traffic runs over the storage network or nowhere (no \
              published figure)",
        source: "rule of thumb 13; Microsoft: Set-DnsClient",
        thumbs: &[13],
        fix: "Set-DnsClient -InterfaceAlias {port} -RegisterThisConnectionsAddress $false",
        undo: "Set-DnsClient -InterfaceAlias {port} -RegisterThisConnectionsAddress $true",
        check: |facts| {
            ports(facts, |port| {
                known_of(port, &port.registers_dns, |on| {
                    let what = if *on { "registers in DNS" } else { "is not in DNS" };
                    Outcome::judged(!*on, Verdict::Warn, &port.name, format!("{} {what}", port.name))
                })
            })
        },
    },
    Rule {
        id: "windows-bindings",
        group: Group::Windows,
        title: "Nothing but IPv4 is bound to a storage port",
        severity: Severity::Note,
        applies: ALL,
        why: "NetBIOS and IPv6 send broadcasts over the storage network, and offer file shares there",
        source: "rule of thumb 13",
        thumbs: &[13],
        fix: "Disable-NetAdapterBinding -Name {port} -ComponentID ms_tcpip6    # and NetBIOS: Get-CimInstance \
              Win32_NetworkAdapterConfiguration | Where-Object InterfaceIndex -eq (Get-NetAdapter -Name {port}).InterfaceIndex | \
              Invoke-CimMethod -MethodName SetTcpipNetbios -Arguments @{TcpipNetbiosOptions = [uint32]2}",
        undo: "Enable-NetAdapterBinding -Name {port} -ComponentID ms_tcpip6    # and NetBIOS: the same with [uint32]{old}",
        check: |facts| {
            ports(facts, |port| match (port.ipv6.known(), port.netbios.known()) {
                (Ok(six), Ok(netbios)) => {
                    let more = [(*six, "IPv6"), (*netbios, "NetBIOS")];
                    let more: Vec<_> = more.into_iter().filter(|(on, _)| *on).map(|(_, name)| name).collect();
                    let what = match more.is_empty() {
                        true => format!("{} has IPv4 alone", port.name),
                        false => format!("{} has {} beside IPv4", port.name, more.join(" and ")),
                    };
                    let outcome = Outcome::judged(more.is_empty(), Verdict::Warn, &port.name, what);
                    // What is off already stays off when the fix is undone.
                    let (fix, undo) = match (*six, *netbios) {
                        (true, true) => (
                            format!("{UNBIND}; {}", netbios_to("2")),
                            format!("{BIND}; {}", netbios_to("{old}")),
                        ),
                        (true, false) => (UNBIND.to_owned(), BIND.to_owned()),
                        (false, _) => (netbios_to("2"), netbios_to("{old}")),
                    };
                    outcome.with("old", port.netbios_option.unwrap_or(0)).fixed_by(fix, undo)
                }
                (Err(why), _) | (_, Err(why)) => {
                    Outcome::unknown(&port.name, format!("{}: {why}", port.name))
                }
            })
        },
    },
    Rule {
        id: "windows-mtu",
        group: Group::Windows,
        title: "All storage ports have the same MTU",
        severity: Severity::Warning,
        applies: "Windows machines with two or more storage ports",
        why: "a frame that is too large for a port on its way is lost: small I/O works, large I/O hangs (no published figure)",
        source: "rule of thumb 11",
        thumbs: &[11],
        fix: "Set-NetAdapterAdvancedProperty -Name {port} -RegistryKeyword *JumboPacket -RegistryValue {new}",
        undo: "Set-NetAdapterAdvancedProperty -Name {port} -RegistryKeyword *JumboPacket -RegistryValue {old}",
        check: |facts| {
            let largest = facts.windows.iter().filter_map(|windows| windows.ports.get()).flatten();
            let largest = largest.filter_map(|port| port.mtu.get().copied()).max().unwrap_or(0);
            let judged = ports(facts, |port| {
                known_of(port, &port.mtu, |mtu| {
                    let what = format!("{} has an MTU of {mtu}", port.name);
                    let outcome = Outcome::judged(*mtu == largest, Verdict::Warn, &port.name, what);
                    // The header of Ethernet counts there.
                    outcome.with("new", largest.saturating_add(14)).with("old", mtu.saturating_add(14))
                })
            });
            if judged.len() > 1 { judged } else { Vec::new() }
        },
    },
    Rule {
        id: "windows-sessions",
        group: Group::Windows,
        title: "Sessions to one target leave by addresses of their own, and come back after a restart",
        severity: Severity::Warning,
        applies: ALL,
        why: "with the address \"default\" all sessions leave by one card, as in a team: 22 % slower reads, 59 % slower writes",
        source: "published tests of multipath topologies, test A; Microsoft: Connect-IscsiTarget -InitiatorPortalAddress -IsPersistent",
        thumbs: &[5],
        fix: "Connect-IscsiTarget -NodeAddress {target} -InitiatorPortalAddress ADDRESS -TargetPortalAddress {portal} -IsPersistent $true \
              -IsMultipathEnabled $true; Unregister-IscsiSession -SessionIdentifier {session}; Disconnect-IscsiTarget -NodeAddress {target} \
              -SessionIdentifier {session} -Confirm:$false    # ADDRESS: of a storage port that has no other session to the target",
        undo: "Connect-IscsiTarget -NodeAddress {target} -TargetPortalAddress {portal} -IsPersistent {persistent} -IsMultipathEnabled $true    \
               # then Unregister-IscsiSession and Disconnect-IscsiTarget with the SessionIdentifier of the session from ADDRESS",
        check: sessions,
    },
];

/// `TcpAckFrequency` where it is not set (Microsoft, article 328890).
const ACK_FREQUENCY: u64 = 2;

/// `TCPNoDelay` where it is not set (`Tcpip\Parameters\Interfaces`).
const NO_DELAY: u64 = 0;

/// The key of a port's settings of TCP.
const INTERFACE: &str = "$key = 'HKLM:\\SYSTEM\\CurrentControlSet\\Services\\Tcpip\\Parameters\\Interfaces\\' + (Get-NetAdapter \
                         -Name {port}).InterfaceGuid";

const UNBIND: &str = "Disable-NetAdapterBinding -Name {port} -ComponentID ms_tcpip6";
const BIND: &str = "Enable-NetAdapterBinding -Name {port} -ComponentID ms_tcpip6";

/// The command that sets a port's TcpipNetbiosOptions: 0 by DHCP, 1 on, 2 off (Win32_NetworkAdapterConfiguration).
fn netbios_to(option: &str) -> String {
    format!(
        "Get-CimInstance Win32_NetworkAdapterConfiguration | Where-Object InterfaceIndex -eq (Get-NetAdapter -Name {{port}}).InterfaceIndex | \
         Invoke-CimMethod -MethodName SetTcpipNetbios -Arguments @{{TcpipNetbiosOptions = [uint32]{option}}}"
    )
}

fn windows(facts: &Facts, judge: impl FnOnce(&Windows) -> Vec<Outcome>) -> Vec<Outcome> {
    facts.windows.as_ref().map(judge).unwrap_or_default()
}

fn known<T>(fact: &Seen<T>, place: &str, judge: impl FnOnce(&T) -> Outcome) -> Outcome {
    match fact.known() {
        Ok(value) => judge(value),
        Err(why) => Outcome::unknown(place, format!("{place}: {why}")),
    }
}

fn known_of<T>(port: &WindowsPort, fact: &Seen<T>, judge: impl FnOnce(&T) -> Outcome) -> Outcome {
    known(fact, &port.name, judge)
}

/// Judges values of MPIO; one that is missing is not known.
fn mpio(facts: &Facts, names: &[&str], judge: impl FnOnce(&[u64]) -> Outcome) -> Vec<Outcome> {
    windows(facts, |windows| {
        vec![known(&windows.mpio, "MPIO", |values| {
            let found: Vec<u64> = names.iter().filter_map(|name| values.get(*name).copied()).collect();
            match found.len() == names.len() {
                true => judge(&found),
                false => Outcome::unknown("MPIO", format!("{} is not in the facts", names.join(" or "))),
            }
        })]
    })
}

fn ports(facts: &Facts, judge: impl Fn(&WindowsPort) -> Outcome) -> Vec<Outcome> {
    windows(facts, |windows| match windows.ports.known() {
        Err(why) => vec![Outcome::unknown("storage ports", format!("storage ports: {why}"))],
        // The ports are those that the sessions leave by.
        Ok(ports) if ports.is_empty() => match windows.sessions.known() {
            Err(why) => vec![Outcome::unknown("storage ports", format!("storage ports: {why}"))],
            Ok(sessions) if sessions.is_empty() => Vec::new(),
            Ok(_) => {
                let what = "storage ports: none is known that a session leaves by";
                vec![Outcome::unknown("storage ports", what)]
            }
        },
        Ok(ports) => ports.iter().map(|port| judge(port).with("port", &port.name)).collect(),
    })
}

fn sessions(facts: &Facts) -> Vec<Outcome> {
    windows(facts, |windows| match windows.sessions.known() {
        Err(why) => vec![Outcome::unknown("sessions", format!("sessions: {why}"))],
        Ok(sessions) => {
            let judge = |session: &crate::facts::WindowsSession| {
                // The address of a connection that was not bound, where Windows tells no other.
                let bound = session.bound && !matches!(session.local.as_str(), "0.0.0.0" | "::");
                let alike = sessions.iter().filter(|other| other.target == session.target);
                let shared = bound && alike.filter(|other| other.local == session.local).count() > 1;
                let wrong = [
                    (!bound, "leaves by whatever address Windows chooses"),
                    (shared, "shares its local address with another one"),
                    (!session.persistent, "does not come back after a restart"),
                ];
                let wrong: Vec<_> = wrong.into_iter().filter(|(is, _)| *is).map(|(_, what)| what).collect();
                let what = match wrong.is_empty() {
                    true => "is bound and comes back after a restart".to_owned(),
                    false => wrong.join(", and "),
                };
                let what = format!("the session from {} to {} {what}", session.local, session.portal);
                let identifier =
                    Some(session.identifier.as_str()).filter(|identifier| !identifier.is_empty());
                let outcome = Outcome::judged(wrong.is_empty(), Verdict::Warn, &session.target, what)
                    .with("target", &session.target)
                    .with("portal", &session.portal)
                    .with("session", identifier.unwrap_or("ID"))
                    .with_text("persistent", format!("${}", session.persistent));
                match bound && !shared {
                    true => outcome.fixed_by(
                        "Register-IscsiSession -SessionIdentifier {session} -IsMultipathEnabled $true",
                        "Unregister-IscsiSession -SessionIdentifier {session}",
                    ),
                    false => outcome,
                }
            };
            sessions.iter().map(judge).collect()
        }
    })
}
