//! Tests of addresses of several paths.

use super::*;

const BASE: &str = "iscsi://192.0.2.10/iqn.2026-11.com.example:disk/0";

fn several(query: &str) -> MultipathUrl {
    match Address::parse(&format!("{BASE}?{query}")).unwrap() {
        Address::Several(url) => url,
        Address::One(url) => panic!("{query} is one path: {url}"),
    }
}

fn refused(query: &str) -> String {
    Address::parse(&format!("{BASE}?{query}")).unwrap_err().to_string()
}

fn named(host: &str, port: u16, target: Option<&str>) -> PortalName {
    PortalName { host: host.to_owned(), port, target: target.map(str::to_owned) }
}

#[test]
fn a_portal_may_have_the_disk_under_another_name() {
    let url = several(
        "portal=192.0.2.11,iqn.x:b&portal=[2001:db8::1]:99,iqn.x:c&portal=192.0.2.12,iqn.2026-11.com.example:DISK\
         &portal=192.0.2.13",
    );
    let names: Vec<_> = url.portals.iter().map(|portal| url.own_name(portal)).collect();
    assert_eq!(url.portals[0], named("192.0.2.11", 3260, Some("iqn.x:b")));
    assert_eq!(names, [Some("iqn.x:b".to_owned()), Some("iqn.x:c".to_owned()), None, None]);
    let lanes = several("lane=192.0.2.20>192.0.2.11:9,iqn.x:b,reserve").lanes;
    assert_eq!((&lanes[0].portal, lanes[0].reserve), (&named("192.0.2.11", 9, Some("iqn.x:b")), true));
    let address = url.lane(None, "192.0.2.11:3260".parse().unwrap(), Some("iqn.x:b"));
    assert_eq!(address.to_string(), "iscsi://192.0.2.11:3260/iqn.x:b/0");
    assert!(refused("portal=192.0.2.11,node-b").contains("`node-b` is not an iSCSI name"));
}

#[test]
fn one_portal_and_none_of_the_keys_is_one_path() {
    for query in ["", "?from=192.0.2.20", "?header_digest=crc32c&from=192.0.2.20"] {
        let text = format!("{BASE}{query}");
        assert_eq!(Address::parse(&text), Ok(Address::One(IscsiUrl::parse(&text).unwrap())), "{query}");
    }
}

#[test]
fn any_of_the_keys_makes_it_several_paths() {
    for query in [
        "portal=192.0.2.11",
        "from=192.0.2.20&from=192.0.2.21",
        "lane=192.0.2.20>192.0.2.10",
        "plan=mesh",
        "policy=round-robin",
        "failback=manual",
        "when_none=fail",
        "queue=forever",
        "key=0x1",
        "weight=1",
    ] {
        assert_eq!(several(query).base, IscsiUrl::parse(BASE).unwrap(), "{query}");
    }
}

#[test]
fn a_whole_address_comes_apart() {
    let url = several(
        "portal=192.0.2.11:3261&data_digest=crc32c&portal=[2001:db8::1]&from=192.0.2.20&from=%5B2001:db8::2%5D\
         &plan=redundant&policy=least-queue-depth&failback=10s&when_none=queue:5s:16M&settle=2s&unproven=fail\
         &key=0xBEEF&register=again&weight=1,10",
    );
    assert!(url.base.data_digest && url.base.from.is_none());
    assert_eq!(url.portals, [named("192.0.2.11", 3261, None), named("2001:db8::1", 3260, None)]);
    let from: Vec<IpAddr> = vec!["192.0.2.20".parse().unwrap(), "2001:db8::2".parse().unwrap()];
    assert_eq!((url.from, url.plan), (from, Some(PlanKind::Redundant)));
    assert_eq!(url.policy, Some(Policy::LeastQueueDepth));
    assert_eq!(url.failback, Some(Failback::After(Duration::from_secs(10))));
    assert_eq!(url.when_none, Some(WhenNone::Queue { time: Duration::from_secs(5), bytes: 16 << 20 }));
    assert_eq!((url.settle, url.unproven), (Some(Duration::from_secs(2)), Some(Unproven::Fail)));
    assert_eq!((url.key, url.register), (Some(0xBEEF), Some(Registering::Again)));
    assert_eq!(url.weights, [1, 10]);
    let lanes =
        several("lane=192.0.2.20%3E192.0.2.10&lane=[2001:db8::2]>[2001:db8::1]:9,reserve,weight=7").lanes;
    let lane = |from: &str, host: &str, port, weight, reserve| LaneName {
        from: from.parse().unwrap(),
        portal: named(host, port, None),
        weight,
        reserve,
    };
    assert_eq!(lanes[0], lane("192.0.2.20", "192.0.2.10", 3260, None, false));
    assert_eq!(lanes[1], lane("2001:db8::2", "2001:db8::1", 9, Some(7), true));
}

#[test]
fn a_lane_has_the_secrets_and_keys_of_the_whole() {
    let text = format!("{}?portal=192.0.2.11&header_digest=crc32c", BASE.replace("//", "//u%hunter2@"));
    let Ok(Address::Several(url)) = Address::parse(&text) else { panic!() };
    let lane = url.lane(Some("192.0.2.20".parse().unwrap()), "192.0.2.11:3260".parse().unwrap(), None);
    assert_eq!((lane.portal().as_str(), lane.header_digest), ("192.0.2.11:3260", true));
    assert!(lane.account.is_some() && lane.lun == Some(0));
    assert!(!format!("{url:?} {url}").contains("hunter2"));
}

#[test]
fn a_queue_is_a_time_or_for_ever_or_none() {
    let mib = 1 << 20;
    for (text, time, bytes) in [
        ("queue=2m", Duration::from_secs(120), 256 * mib),
        ("queue=2m:1M", Duration::from_secs(120), mib),
        ("queue=forever", QUEUE_FOREVER, 256 * mib),
        ("queue=forever:8M", QUEUE_FOREVER, 8 * mib),
        ("when_none=queue:forever:8M", QUEUE_FOREVER, 8 * mib),
    ] {
        assert_eq!(several(text).when_none, Some(WhenNone::Queue { time, bytes }), "{text}");
    }
    assert_eq!(several("queue=fail").when_none, Some(WhenNone::Fail));
    let timers = several("plan=mesh&command_timeout=5s").base.command_timeout;
    assert_eq!(timers, Some(Duration::from_secs(5)), "for each lane");
}

#[test]
fn what_is_wrong_is_said() {
    for (query, part) in [
        ("portal=", "in `portal=`"),
        ("portal=a:b:c", "in `portal=a:b:c`"),
        ("from=here&from=there", "`here` is not a local IP address"),
        ("lane=192.0.2.20", "`192.0.2.20` is no lane"),
        ("lane=x>192.0.2.10", "is no lane"),
        ("lane=192.0.2.20>192.0.2.10,weight=101", "is no lane"),
        ("lane=192.0.2.20>192.0.2.10,reserve=no", "is no lane"),
        ("plan=best", "`best` is not a plan; plans are paired"),
        ("policy=fair", "fair"),
        ("policy=adaptive&policy=adaptive", "`policy` is given twice"),
        ("failback=soon", "in failback: "),
        ("when_none=wait", "when_none cannot be `wait`"),
        ("when_none=queue:x", "queue:30s:256M"),
        ("when_none=fail:3", "when_none cannot be"),
        ("queue=", "queue cannot be ``"),
        ("queue=ever", "queue=2m:256M"),
        ("queue=fail&when_none=fail", "is given twice"),
        ("queue=1m&replacement_timeout=5s", "replacement_timeout is for a single path"),
        ("plan=mesh&command_timeout=0s", "command_timeout cannot be `0s`"),
        ("settle=long", "settle cannot be `long`"),
        ("settle=2h", "at most 1h"),
        ("settle=1s&settle=2s", "`settle` is given twice"),
        ("unproven=hope", r#"in unproven: "hope" is none of resend, fail"#),
        ("register=first", "add key=0x…"),
        ("key=1&register=now", r#"in register: "now" is none of first, again, present"#),
        ("key=0", "is not a reservation key"),
        ("key=0x11112222333344445", "is not a reservation key"),
        ("weight=1,many", "are no weights"),
        ("polcy=adaptive", "for several paths portal, from"),
        ("plan=mesh&polcy=adaptive", "for several paths portal, from"),
    ] {
        let said = refused(query);
        assert!(said.contains(part), "{query}: {said}");
    }
    assert!(refused(&"portal=h&".repeat(65)).contains("more than 64"));
}

#[test]
fn no_error_shows_a_secret() {
    for query in ["plan=mesh&target_user=t&target_password=hunter2", "plan=mesh&x=hunter2", "plan=hm"] {
        let text = format!("{}?{query}", BASE.replace("//", "//u%hunter2@"));
        let error = Address::parse(&text).unwrap_err();
        assert!(!format!("{error} {error:?}").contains("hunter2"), "{error:?}");
    }
}
