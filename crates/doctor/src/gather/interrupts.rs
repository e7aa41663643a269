//! Interrupts of a card's queues, and the processors that take them.

use std::collections::BTreeSet;

use super::source::Machine;
use crate::facts::Interrupts;

/// Processors of a list that are told: those of Linux's largest machines (NR_CPUS).
const PROCESSORS_MAX: usize = 8192;

/// Words in the names of interrupts that belong to a card and to none of its queues: of virtio, mlx5, ena, ixgbe, gve.
const CONTROL: [&str; 8] = ["config", "control", "async", "admin", "mgmnt", "mgmt", "misc", "event"];

/// Reads the counts of all interrupts, for [`of_card`]: a table of megabytes on machines with many processors.
pub(super) fn table(machine: &Machine) -> Result<String, String> {
    machine.text("/proc/interrupts")
}

/// Reads which interrupts are those of a port's queues, how many each processor has taken by the [`table`], and where
/// they go now (Linux admin guide, IRQ-affinity).
pub(super) fn of_card(
    machine: &Machine,
    shown: &Result<String, String>,
    port: &str,
) -> Result<Interrupts, String> {
    let folder = format!("/sys/class/net/{port}");
    // A virtio card's belong to the PCI function above it.
    let folders = [format!("{folder}/device/msi_irqs"), format!("{folder}/device/../msi_irqs")];
    let own = folders.iter().map(|folder| machine.names(folder)).find(|names| !names.is_empty());
    let own = own.ok_or_else(|| format!("{port} has no message-signalled interrupts"))?;
    let own: BTreeSet<u32> = own.iter().filter_map(|name| name.parse().ok()).collect();
    let mut lines = shown.as_ref().map_err(String::clone)?.lines();
    let header = lines.next().unwrap_or_default().split_whitespace();
    let processors: Vec<u32> = header.filter_map(|name| name.strip_prefix("CPU")?.parse().ok()).collect();
    let queues = machine.names(&format!("{folder}/queues"));
    let mut found = Interrupts {
        processors: u32::try_from(processors.len()).unwrap_or(u32::MAX),
        queues: queues.iter().filter(|name| name.starts_with("rx-")).count().try_into().unwrap_or(u32::MAX),
        ..Interrupts::default()
    };
    for line in lines {
        // ` 38:    0  13966  PCI-MSIX-0000:00:03.0   1-edge      virtio2-input.0`
        let Some((number, rest)) = line.split_once(':') else { continue };
        let Some(number) = number.trim().parse().ok().filter(|number| own.contains(number)) else { continue };
        let mut words = rest.split_whitespace();
        let counts: Vec<u64> =
            words.by_ref().take(processors.len()).map_while(|word| word.parse().ok()).collect();
        if counts.len() != processors.len() || !is_of_queue(words.last().unwrap_or_default(), port) {
            continue;
        }
        found.numbers.push(number);
        for (processor, count) in processors.iter().zip(counts).filter(|(_, count)| *count > 0) {
            let taken: &mut u64 = found.taken.entry(processor.to_string()).or_default();
            *taken = taken.saturating_add(count);
        }
        found.now.extend(listed(machine, &format!("/proc/irq/{number}/effective_affinity_list"))?);
    }
    Ok(found)
}

/// Returns `true` if an interrupt's name ends in the number of a queue: `virtio2-input.0`, `eth0-TxRx-3`,
/// `mlx5_comp0@pci:0000:01:00.0`.
fn is_of_queue(name: &str, port: &str) -> bool {
    let name = name.split('@').next().unwrap_or_default();
    // The port's name alone is what Intel's drivers call that of the link's state.
    name.ends_with(|c: char| c.is_ascii_digit())
        && name != port
        && !CONTROL.iter().any(|word| name.contains(word))
}

/// Processors of a list as `0-3,7`.
fn listed(machine: &Machine, path: &str) -> Result<BTreeSet<u32>, String> {
    let line = machine.line(path)?;
    let range = |text: &str| {
        let (first, last) = text.split_once('-').unwrap_or((text, text));
        Some(first.parse::<u32>().ok()?..=last.parse::<u32>().ok()?)
    };
    let mut all = BTreeSet::new();
    for text in line.split(',').filter(|text| !text.is_empty()) {
        let odd = || format!("{path} says {:?}", line.chars().take(40).collect::<String>());
        all.extend(range(text).ok_or_else(odd)?.take(PROCESSORS_MAX));
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gather::put;

    /// As Linux 6.18 shows them of a virtio card with two pairs of queues.
    const SHOWN: &str = "           CPU0       CPU1
 24:          1          0  IO-APIC   5-edge      ACPI:Ged
 36:          0    7131793 PCI-MSIX-0000:00:02.0   1-edge      virtio1-req.0
 37:          0          3 PCI-MSIX-0000:00:03.0   0-edge      virtio2-config
 38:          0      13966 PCI-MSIX-0000:00:03.0   1-edge      virtio2-input.0
 39:       9780          0 PCI-MSIX-0000:00:03.0   2-edge      virtio2-output.0
 40:          0         34 PCI-MSIX-0000:00:03.0   3-edge      virtio2-input.1
LOC:   28619801   27161086   Local timer interrupts
";

    #[test]
    fn interrupts_of_queues_are_told_from_those_of_control_and_of_other_devices() {
        let folder = tempfile::tempdir().unwrap_or_else(|error| panic!("{error}"));
        let root = folder.path();
        let machine = Machine::copy(root);
        let found = || of_card(&machine, &table(&machine), "eth0");
        assert_eq!(found(), Err("eth0 has no message-signalled interrupts".to_owned()));
        for number in 37..41 {
            put(root, &format!("sys/devices/pci/msi_irqs/{number}"), "msix\n");
        }
        put(root, "sys/devices/pci/virtio2/net/eth0/queues/rx-0/x", "");
        put(root, "sys/devices/pci/virtio2/net/eth0/queues/rx-1/x", "");
        put(root, "sys/devices/pci/virtio2/net/eth0/queues/tx-0/x", "");
        let links = std::fs::create_dir_all(root.join("sys/class/net"))
            .and_then(|()| {
                std::os::unix::fs::symlink(
                    "../../devices/pci/virtio2/net/eth0",
                    root.join("sys/class/net/eth0"),
                )
            })
            .and_then(|()| {
                std::os::unix::fs::symlink(
                    "../../../virtio2",
                    root.join("sys/devices/pci/virtio2/net/eth0/device"),
                )
            });
        assert!(links.is_ok(), "{links:?}");
        assert!(found().is_err_and(|why| why.contains("/proc/interrupts")));
        put(root, "proc/interrupts", SHOWN);
        assert!(found().is_err_and(|why| why.contains("/proc/irq/38")));
        for (number, list) in [(38, "1\n"), (39, "0,2-3\n"), (40, "1\n")] {
            put(root, &format!("proc/irq/{number}/effective_affinity_list"), list);
        }
        let interrupts = Interrupts {
            processors: 2,
            queues: 2,
            numbers: vec![38, 39, 40],
            now: [0, 1, 2, 3].into(),
            taken: [("0".to_owned(), 9780), ("1".to_owned(), 14_000)].into(),
        };
        assert_eq!(found(), Ok(interrupts));
        put(root, "proc/irq/38/effective_affinity_list", "-\n");
        assert!(found().is_err_and(|why| why.contains("says \"-\"")));
    }

    #[test]
    fn names_of_queues_end_in_a_number() {
        for name in [
            "virtio2-input.0",
            "eth0-TxRx-3",
            "mlx5_comp0@pci:0000:01:00.0",
            "eth0-Tx-Rx-1",
            "i40e-eth0-TxRx-0",
        ] {
            assert!(is_of_queue(name, "eth0"), "{name}");
        }
        for name in
            ["virtio2-config", "eth0", "mlx5_async0@pci:0000:01:00.0", "ena-mgmnt@pci:0000:00:05.0", ""]
        {
            assert!(!is_of_queue(name, "eth0"), "{name}");
        }
    }
}
