//! Rules about nodes of Kubernetes: what a CSI driver's node plugin, which runs in a pod, needs of the machine itself.

use std::collections::BTreeSet;

use lunway_block::Severity;

use super::{Group, Rule};
use crate::facts::{Facts, Kubernetes};
use crate::seen::Seen;
use crate::verdict::{Outcome, Verdict};

const NODES: &str = "nodes of Kubernetes with open-iscsi, or with a CSI driver for iSCSI";

pub(super) const RULES: &[Rule] = &[
    Rule {
        id: "kubernetes-module",
        group: Group::Host,
        title: "The kernel's iSCSI initiator is loaded on a node",
        severity: Severity::Warning,
        applies: NODES,
        why: "a pod has no modules of the node's kernel to load: each volume of iSCSI then stays in ContainerCreating, with 1 attempt every 2 min \
              and the words \"iscsid is not running\" or \"could not load transport iscsi\"",
        source: "open-iscsi: iscsi_tcp; kubelet's longest wait between two attempts of a mount, 2 min 2 s",
        thumbs: &[],
        fix: "modprobe iscsi_tcp; echo iscsi_tcp > /etc/modules-load.d/iscsi_tcp.conf",
        undo: "rm /etc/modules-load.d/iscsi_tcp.conf; modprobe -r iscsi_tcp",
        check: |facts| {
            node(
                facts,
                "whether iscsi_tcp is loaded",
                |node| &node.tcp_module,
                |_, loaded| {
                    let is = if *loaded { "is" } else { "is not" };
                    Outcome::judged(
                        *loaded,
                        Verdict::Bad,
                        "iscsi_tcp",
                        format!("the module iscsi_tcp {is} loaded"),
                    )
                },
            )
        },
    },
    Rule {
        id: "kubernetes-initiator",
        group: Group::Host,
        title: "A node has an initiator name of its own in /etc/iscsi",
        severity: Severity::Warning,
        applies: NODES,
        why: "node plugins use the node's /etc/iscsi and its name: without the file they fail, and a name that came with the image is that of all \
              nodes (no published figure)",
        source: "truenas-csi issue 39; RFC 7143 §4.2.7: names are unique",
        thumbs: &[],
        fix: "mkdir -p /etc/iscsi; echo InitiatorName=$(iscsi-iname) > /etc/iscsi/initiatorname.iscsi; systemctl enable --now iscsid",
        undo: "rm /etc/iscsi/initiatorname.iscsi; systemctl disable --now iscsid",
        check: |facts| {
            let Some(_) = &facts.kubernetes else { return Vec::new() };
            let name = facts.open_iscsi.as_ref().map(|initiator| initiator.initiator_name.known());
            vec![match name {
                Some(Ok(name)) => Outcome::ok("/etc/iscsi", format!("the node is {name}")),
                Some(Err(why)) => Outcome::unknown("/etc/iscsi", format!("the node's initiator name: {why}")),
                None => Outcome::bad("/etc/iscsi", "the node has no open-iscsi and no initiator name"),
            }]
        },
    },
    Rule {
        id: "kubernetes-mounts",
        group: Group::Host,
        title: "Mounts of a node plugin reach the node and its pods",
        severity: Severity::Warning,
        applies: NODES,
        why: "what a plugin mounts below a private mount stays in its own pod: the application finds an empty folder, and writes to the node's disk, \
              without an error (no published figure)",
        source: "mount_namespaces(7); Kubernetes, volumes: mountPropagation Bidirectional needs shared mounts",
        thumbs: &[],
        fix: "mount --make-rshared /",
        undo: "mount --make-rprivate /",
        check: |facts| {
            node(
                facts,
                "propagation of mounts",
                |node| &node.shared,
                |node, shared| {
                    let is = if *shared { "shared" } else { "private" };
                    Outcome::judged(
                        *shared,
                        Verdict::Bad,
                        &node.kubelet,
                        format!("mounts below {} are {is}", node.kubelet),
                    )
                },
            )
        },
    },
    Rule {
        id: "kubernetes-multipath",
        group: Group::Host,
        title: "multipathd runs on the node itself",
        severity: Severity::Note,
        applies: NODES,
        why: "a second multipathd in a pod knows other settings and other maps than the node's, and of two the one makes maps of paths that the \
              other uses bare; without any, volumes with 2 portals have 1 path",
        source: "csi-lib-iscsi and trident: multipathd of the host, find_multipaths no",
        thumbs: &[2],
        fix: "mpathconf --enable --find_multipaths n || systemctl enable --now multipathd",
        undo: "systemctl disable --now multipathd",
        check: |facts| {
            node(
                facts,
                "whether multipathd runs",
                |node| &node.multipathd,
                |_, runs| {
                    let what = match (*runs, has_two_sessions(facts)) {
                        (true, _) => "multipathd runs on this node",
                        (false, true) => {
                            "multipathd does not run on this node, and a target has two sessions"
                        }
                        (false, false) => "no target has two sessions, so that multipathd is not needed",
                    };
                    Outcome::judged(*runs || !has_two_sessions(facts), Verdict::Warn, "multipathd", what)
                },
            )
        },
    },
];

fn node(
    facts: &Facts,
    what: &str,
    fact: fn(&Kubernetes) -> &Seen<bool>,
    judge: impl Fn(&Kubernetes, &bool) -> Outcome,
) -> Vec<Outcome> {
    let Some(node) = &facts.kubernetes else { return Vec::new() };
    vec![match fact(node).known() {
        Ok(known) => judge(node, known),
        Err(why) => Outcome::unknown(&node.kubelet, format!("{what}: {why}")),
    }]
}

/// Returns `true` if a target is reached by two sessions of the kernel's initiator.
fn has_two_sessions(facts: &Facts) -> bool {
    let sessions = facts.open_iscsi.iter().filter_map(|initiator| initiator.sessions.get()).flatten();
    let mut targets = BTreeSet::new();
    sessions.map(|session| &session.target).any(|target| !targets.insert(target))
}
