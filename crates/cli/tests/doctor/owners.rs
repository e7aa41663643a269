//! An address that two machines have, on a network that runs.

use std::net::IpAddr;
use std::process::Command;

use lunway_doctor::{Seen, owners};
use lunway_lab::{LiveHost, Network};

use crate::sandboxed::inside;

/// Three machines on one switch.
const NETWORK: &str = "
[[host]]
name = 'server'
[[host]]
name = 'storage'
[[host]]
name = 'intruder'
[[switch]]
name = 'fabric'
[[cable]]
name = 'a'
ends = ['server.eth0', 'fabric']
[[cable]]
name = 'b'
ends = ['storage.eth0', 'fabric']
[[cable]]
name = 'c'
ends = ['intruder.eth0', 'fabric']
";

fn ip(host: &LiveHost, arguments: &str) {
    let mut command = Command::new("ip");
    command.args(arguments.split(' '));
    assert!(host.spawn(command).unwrap().wait().unwrap().success(), "{arguments}");
}

#[test]
fn an_address_that_two_machines_have_is_told_with_both_and_no_longer_when_one_gives_it_up() {
    if !inside(
        "owners::an_address_that_two_machines_have_is_told_with_both_and_no_longer_when_one_gives_it_up",
    ) {
        return;
    }
    let network = Network::build(&toml::from_str(NETWORK).unwrap()).unwrap();
    let host = |name: &str| network.host(name).unwrap();
    let (server, intruder) = (host("server"), host("intruder"));
    let (own, portal) = (server.address("eth0").unwrap(), host("storage").address("eth0").unwrap());
    let IpAddr::V4(near) = own else { panic!("{own}") };
    let count = |near, address| match server.run(move || owners("eth0", near, address)).unwrap() {
        Seen::Value(found) => found.len(),
        Seen::Unseen { unseen } => panic!("{unseen}"),
    };
    let all = || (count(Some(near), portal), count(None, own));
    assert_eq!(all(), (1, 0));
    ip(intruder, &format!("address add {portal}/24 dev eth0"));
    assert_eq!(all(), (2, 0), "the portal's");
    ip(intruder, &format!("address del {portal}/24 dev eth0"));
    ip(intruder, &format!("address add {own}/24 dev eth0"));
    assert_eq!(all(), (1, 1), "our own");
    ip(intruder, &format!("address del {own}/24 dev eth0"));
    assert_eq!(all(), (1, 0));
}
