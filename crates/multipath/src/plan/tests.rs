use std::net::{IpAddr, SocketAddr};

use ipnet::IpNet;

use super::*;

const GIGABIT: u64 = 1_000_000_000;

fn local(interface: &str, network: &str) -> LocalPort {
    let network: IpNet = network.parse().unwrap();
    LocalPort {
        ip: network.addr(),
        network,
        interface: interface.to_owned(),
        card: interface.split('.').next().unwrap().to_owned(),
        speed: Some(GIGABIT),
        mtu: Some(1500),
        carrier: true,
        loopback: interface == "lo",
    }
}

fn portal(address: &str) -> Portal {
    Portal {
        address: SocketAddr::new(address.parse().unwrap(), 3260),
        target: None,
        group: Some(1),
        named: false,
    }
}

/// A machine whose kernel sends by the first card in the destination's subnet, else to 10.0.1.254.
struct Setting {
    /// Has rules that make it send by the source's card.
    routes_by_source: bool,
    locals: Vec<LocalPort>,
    portals: Vec<Portal>,
    wish: Wish,
}

impl Setting {
    fn new(locals: &[(&str, &str)], portals: &[&str]) -> Self {
        Self {
            routes_by_source: false,
            locals: locals.iter().map(|(interface, network)| local(interface, network)).collect(),
            portals: portals.iter().map(|address| portal(address)).collect(),
            wish: Wish::default(),
        }
    }

    fn kind(mut self, kind: PlanKind) -> Self {
        self.wish.kind = Some(kind);
        self
    }

    fn from(mut self, from: &[&str]) -> Self {
        self.wish.from = from.iter().map(|ip| ip.parse().unwrap()).collect();
        self
    }

    fn route(&self, from: Option<IpAddr>, to: IpAddr) -> Option<Route> {
        let own = |port: &&LocalPort| !self.routes_by_source || from.is_none_or(|ip| ip == port.ip);
        let direct = self.locals.iter().filter(own).find(|port| port.network.contains(&to));
        let port = direct.or(self.locals.first())?;
        Some(Route {
            interface: Some(port.interface.clone()),
            source: Some(from.unwrap_or(port.ip)),
            gateway: direct.is_none().then(|| IpAddr::from([10, 0, 1, 254])),
        })
    }

    fn try_plan(&self) -> Result<Plan, PlanError> {
        let route = |from, to| self.route(from, to);
        let inventory =
            Inventory { locals: self.locals.clone(), portals: self.portals.clone(), route: &route };
        Plan::make(&self.wish, &inventory)
    }

    fn plan(&self) -> Plan {
        self.try_plan().unwrap()
    }
}

/// `1.2>1.10` for 10.0.1.2 > 10.0.1.10:3260; those in reserve in brackets.
fn shown(plan: &Plan) -> String {
    let short = |ip: IpAddr| ip.to_string().trim_start_matches("10.0.").to_owned();
    let lane = |lane: &PlannedLane| {
        let text = format!("{}>{}", lane.near.map_or("any".to_owned(), short), short(lane.portal.ip()));
        if lane.reserve { format!("({text})") } else { text }
    };
    plan.lanes.iter().map(lane).collect::<Vec<_>>().join(" ")
}

fn rules(plan: &Plan) -> Vec<&'static str> {
    plan.warnings.iter().map(|warning| warning.id).collect()
}

fn warning(plan: &Plan, id: &str) -> String {
    plan.warnings.iter().find(|warning| warning.id == id).unwrap().to_string()
}

const TWO: [(&str, &str); 2] = [("eth0", "10.0.1.1/24"), ("eth1", "10.0.2.1/24")];
const TWO_PORTALS: [&str; 2] = ["10.0.1.10", "10.0.2.10"];
const FOUR_IN_ONE: [(&str, &str); 4] =
    [("eth0", "10.0.1.1/24"), ("eth1", "10.0.1.2/24"), ("eth2", "10.0.1.3/24"), ("eth3", "10.0.1.4/24")];
const TWO_IN_ONE: [&str; 2] = ["10.0.1.10", "10.0.1.11"];

#[test]
fn ports_and_portals_of_two_subnets_pair_and_nothing_is_said_against_it() {
    let plan = Setting::new(&TWO, &TWO_PORTALS).plan();
    assert_eq!((plan.kind, shown(&plan)), (PlanKind::Paired, "1.1>1.10 2.1>2.10".to_owned()));
    assert_eq!(plan.warnings, []);
    assert_eq!(plan.lanes[0].name(), "10.0.1.1 > 10.0.1.10:3260");
    assert_eq!(plan.lanes[0].reason, "one to one in 10.0.1.0/24");
    assert!(plan.reasons[0].contains("rule 5"), "{:?}", plan.reasons);
}

#[test]
fn interfaces_without_a_portal_in_their_subnet_are_no_ports() {
    let mut locals = vec![("docker0", "172.17.0.1/16"), ("mgmt", "192.0.2.7/24")];
    locals.extend(TWO);
    let plan = Setting::new(&locals, &TWO_PORTALS).plan();
    assert_eq!((plan.kind, shown(&plan)), (PlanKind::Paired, "1.1>1.10 2.1>2.10".to_owned()));
    assert_eq!(rules(&plan), [""; 0]);
}

#[test]
fn each_kind_makes_its_lanes_of_four_ports_and_two_portals_in_one_subnet() {
    let of = |kind| Setting::new(&FOUR_IN_ONE, &TWO_IN_ONE).kind(kind).plan();
    assert_eq!(shown(&of(PlanKind::Paired)), "1.1>1.10 1.2>1.11");
    assert_eq!(shown(&of(PlanKind::Balanced)), "1.1>1.10 1.2>1.11 1.3>1.10 1.4>1.11");
    assert_eq!(
        shown(&of(PlanKind::Mesh)),
        "1.1>1.10 1.2>1.11 1.3>1.10 1.4>1.11 1.1>1.11 1.2>1.10 1.3>1.11 1.4>1.10"
    );
    assert_eq!(
        shown(&of(PlanKind::Redundant)),
        "1.1>1.10 1.2>1.11 (1.3>1.10) (1.4>1.11) (1.1>1.11) (1.2>1.10) (1.3>1.11) (1.4>1.10)"
    );
    assert_eq!(of(PlanKind::Redundant).active(), 2);
    let unasked = Setting::new(&FOUR_IN_ONE, &TWO_IN_ONE).plan();
    assert_eq!(unasked.kind, PlanKind::Balanced);
    assert!(unasked.reasons[0].contains("do not pair"), "{:?}", unasked.reasons);
}

#[test]
fn what_stays_idle_is_said_with_the_plan_that_would_use_it() {
    let plan = Setting::new(&FOUR_IN_ONE, &TWO_IN_ONE).kind(PlanKind::Paired).plan();
    let idle = plan.reasons.last().unwrap();
    assert!(idle.starts_with("eth2 (10.0.1.3), eth3 (10.0.1.4) carry nothing"), "{idle}");
    assert!(idle.contains("plan=redundant"), "{idle}");
}

#[test]
fn a_mesh_over_subnets_stays_within_them() {
    let locals =
        [("eth0", "10.0.1.1/24"), ("eth1", "10.0.1.2/24"), ("eth2", "10.0.2.1/24"), ("eth3", "10.0.2.2/24")];
    let plan = Setting::new(&locals, &TWO_PORTALS).kind(PlanKind::Mesh).plan();
    assert_eq!(shown(&plan), "1.1>1.10 1.2>1.10 2.1>2.10 2.2>2.10");
}

#[test]
fn lanes_of_one_card_or_one_portal_share_its_number() {
    let plan = Setting::new(&TWO_OF_ONE_CARD, &TWO_PORTALS).plan();
    let ports: Vec<_> = plan.lanes.iter().map(|lane| (lane.near_port, lane.far_port)).collect();
    assert_eq!(ports, [(0, 0), (0, 1)]);
    let said = plan.warnings.last().unwrap();
    assert!(said.id == "one-card" && said.what.ends_with("one card, eth0") && said.place == "eth0", "{said}");
    let mesh = Setting::new(&FOUR_IN_ONE, &TWO_IN_ONE).kind(PlanKind::Mesh).plan();
    let ports: Vec<_> = mesh.lanes.iter().map(|lane| (lane.near_port, lane.far_port)).collect();
    assert_eq!(ports[..5], [(0, 0), (1, 1), (2, 0), (3, 1), (0, 1)]);
}

const TWO_OF_ONE_CARD: [(&str, &str); 2] = [("eth0.5", "10.0.1.1/24"), ("eth0.6", "10.0.2.1/24")];

#[test]
fn a_second_address_of_a_card_in_a_subnet_is_no_second_port_unless_it_was_named() {
    let two = [("eth0", "10.0.1.1/24"), ("eth0", "10.0.1.2/24")];
    assert_eq!(shown(&Setting::new(&two, &["10.0.1.10"]).plan()), "1.1>1.10");
    let named = Setting::new(&two, &TWO_IN_ONE).from(&["10.0.1.1", "10.0.1.2"]).plan();
    assert_eq!(shown(&named), "1.1>1.10 1.2>1.11");
}

#[test]
fn addresses_of_the_loopback_are_ports_of_their_own() {
    let plan = Setting::new(&[("lo", "127.0.0.1/8")], &["127.0.0.1", "127.0.0.2"])
        .from(&["127.0.0.3", "127.0.0.4"])
        .plan();
    assert_eq!(plan.kind, PlanKind::Paired);
    let ports: Vec<_> = plan.lanes.iter().map(|lane| (lane.near_port, lane.far_port)).collect();
    assert_eq!((ports, plan.warnings), (vec![(0, 0), (1, 1)], vec![]));
}

#[test]
fn a_portal_on_this_machine_is_no_port_to_leave_by() {
    let locals = [("eth0", "10.0.1.1/24"), ("eth9", "10.0.1.10/24")];
    assert_eq!(shown(&Setting::new(&locals, &["10.0.1.10"]).plan()), "1.1>1.10");
    assert_eq!(
        shown(&Setting::new(&locals[1..], &["10.0.1.10"]).plan()),
        "1.10>1.10",
        "it is the only one there is"
    );
}

#[test]
fn portals_of_all_groups_are_used_before_any_group_twice() {
    let mut setting = Setting::new(&[("eth0", "10.0.1.1/24"), ("eth1", "10.0.1.2/24")], &[]);
    setting.portals = (10..14).map(|host| portal(&format!("10.0.1.{host}"))).collect();
    setting.portals[2].group = Some(2);
    let plan = setting.kind(PlanKind::Paired).plan();
    assert_eq!(shown(&plan), "1.1>1.10 1.2>1.12");
}

#[test]
fn portals_behind_a_router_are_used_only_where_nothing_else_is_or_when_they_were_named() {
    let mut setting = Setting::new(&TWO, &["10.0.1.10", "198.51.100.7"]);
    let plan = setting.plan();
    assert_eq!(shown(&plan), "1.1>1.10");
    assert!(plan.reasons[0].contains("198.51.100.7:3260 is left out"), "{:?}", plan.reasons);
    setting.portals[1].named = true;
    let plan = setting.plan();
    assert_eq!(shown(&plan), "1.1>1.10 1.1>198.51.100.7");
    assert!(
        warning(&plan, "rule-7").contains("10.0.1.1 > 198.51.100.7:3260 by 10.0.1.254"),
        "{:?}",
        plan.warnings
    );
    let only = Setting::new(&TWO, &["198.51.100.7"]).plan();
    assert_eq!((only.lanes[0].from, shown(&only)), (None, "1.1>198.51.100.7".to_owned()));
    let bound = Setting::new(&TWO, &["198.51.100.7"]).from(&["10.0.1.1", "10.0.2.1"]).plan();
    assert_eq!(shown(&bound), "1.1>198.51.100.7 2.1>198.51.100.7");
    assert!(bound.lanes.iter().all(|lane| lane.from == lane.near));
}

#[test]
fn a_mesh_and_several_ports_in_one_subnet_are_warned_of() {
    let plan = Setting::new(&FOUR_IN_ONE, &TWO_IN_ONE).kind(PlanKind::Mesh).plan();
    assert_eq!(rules(&plan), ["rule-3", "rule-6"]);
    assert!(
        warning(&plan, "rule-3").contains("source-based routing rules"),
        "the kernel says eth0 for all: {plan:?}"
    );
    assert!(warning(&plan, "rule-6").contains("8 lanes over 4 local ports and 2 portals"), "{plan:?}");
    assert!(
        !rules(&Setting::new(&FOUR_IN_ONE, &TWO_IN_ONE).kind(PlanKind::Redundant).plan()).contains(&"rule-6")
    );
}

#[test]
fn several_ports_in_one_subnet_are_warned_of_only_where_a_lane_would_leave_by_another_card() {
    let mut setting = Setting::new(&FOUR_IN_ONE, &TWO_IN_ONE).kind(PlanKind::Mesh);
    setting.routes_by_source = true;
    assert_eq!(rules(&setting.plan()), ["rule-6"], "the kernel says each lane's own card");
    // Of a kernel that does not tell its card, nothing is taken for granted.
    let untold = |from, to| Some(Route { interface: None, ..setting.route(from, to)? });
    let inventory =
        Inventory { locals: setting.locals.clone(), portals: setting.portals.clone(), route: &untold };
    let plan = Plan::make(&setting.wish, &inventory).unwrap();
    assert_eq!(rules(&plan), ["rule-3", "rule-6"]);
    assert!(warning(&plan, "rule-3").contains("where no routes by source say otherwise"), "{plan:?}");
}

#[test]
fn unequal_sessions_are_warned_of_at_the_side_where_they_are() {
    let plan = Setting::new(
        &[("eth0", "10.0.1.1/24"), ("eth1", "10.0.1.2/24")],
        &["10.0.1.10", "10.0.1.11", "10.0.1.12"],
    )
    .plan();
    assert_eq!(shown(&plan), "1.1>1.10 1.2>1.11 1.1>1.12");
    let said = warning(&plan, "rule-5");
    assert!(said.contains("local port") && said.contains("10.0.1.1 has 2 and 10.0.1.2 has 1"), "{said}");
    assert!(said.contains("KB 969748"), "{said}");
}

#[test]
fn cards_that_differ_are_warned_of_with_what_they_have() {
    let mut setting = Setting::new(&TWO, &TWO_PORTALS);
    setting.locals[1].speed = Some(GIGABIT / 10);
    setting.locals[1].mtu = Some(9000);
    let plan = setting.plan();
    assert_eq!(rules(&plan), ["rule-8", "rule-11"]);
    assert!(
        warning(&plan, "rule-8").contains("eth0 (10.0.1.1) has 1 Gb/s and eth1 (10.0.2.1) has 100 Mb/s"),
        "{plan:?}"
    );
    assert!(
        warning(&plan, "rule-11").contains("1500") && warning(&plan, "rule-11").contains("9000"),
        "{plan:?}"
    );
    // What is not known differs from nothing.
    setting.locals[1] = LocalPort { speed: None, mtu: None, ..setting.locals[1].clone() };
    assert_eq!(rules(&setting.plan()), [""; 0]);
}

#[test]
fn networks_that_overlap_are_warned_of_and_the_narrower_one_counts() {
    let plan =
        Setting::new(&[("eth0", "10.0.0.1/16"), ("eth1", "10.0.1.1/24")], &["10.0.1.10", "10.0.2.10"]).plan();
    assert_eq!((shown(&plan), rules(&plan)), ("1.1>1.10 0.1>2.10".to_owned(), vec!["rule-10"]));
}

#[test]
fn a_single_point_of_failure_is_named() {
    let last = |setting: Setting| setting.plan().warnings.last().unwrap().what.clone();
    assert!(last(Setting::new(&TWO, &["10.0.1.10"])).contains("one lane"));
    let one_portal = Setting::new(&[("eth0", "10.0.1.1/24"), ("eth1", "10.0.1.2/24")], &["10.0.1.10"]);
    assert!(last(one_portal).contains("one portal, 10.0.1.10:3260"));
}

#[test]
fn a_port_without_a_carrier_or_an_address_that_is_not_there_is_planned_and_said() {
    let mut setting = Setting::new(&TWO, &TWO_PORTALS);
    setting.locals[1].carrier = false;
    let plan = setting.plan();
    assert!(plan.lanes[1].reason.ends_with("no carrier now"), "{plan:?}");
    assert!(plan.warnings.last().unwrap().what.contains("eth1 (10.0.2.1) has no carrier"), "{plan:?}");
    setting.locals.truncate(1);
    let plan = setting.from(&["10.0.1.1", "10.0.2.1"]).plan();
    assert_eq!(shown(&plan), "1.1>1.10 2.1>2.10");
    assert!(
        plan.warnings.last().unwrap().what.contains("10.0.2.1 is no address of this machine"),
        "{plan:?}"
    );
}

#[test]
fn portals_of_one_address_and_two_names_are_two_and_share_a_port() {
    let mut setting = Setting::new(&TWO, &["10.0.1.10", "10.0.1.10"]).kind(PlanKind::Mesh);
    setting.portals[1].target = Some("iqn.x:b".to_owned());
    let plan = setting.plan();
    let names: Vec<_> = plan.lanes.iter().map(PlannedLane::name).collect();
    assert_eq!(names, ["10.0.1.1 > 10.0.1.10:3260", "10.0.1.1 > 10.0.1.10:3260,iqn.x:b"]);
    assert_eq!(plan.lanes[0].far_port, plan.lanes[1].far_port);
}

#[test]
fn explicit_lanes_are_those_that_were_named() {
    let mut setting = Setting::new(&TWO, &TWO_PORTALS);
    let lane = |from: &str, to: &str, weight, reserve| NamedLane {
        from: from.parse().unwrap(),
        portal: SocketAddr::new(to.parse().unwrap(), 3260),
        target: None,
        weight,
        reserve,
    };
    let (first, second) =
        (lane("10.0.2.1", "10.0.1.10", None, false), lane("10.0.1.1", "10.0.2.10", Some(7), true));
    setting.wish.lanes = vec![first.clone(), second, first];
    setting.wish.weights = vec![3, 4];
    let plan = setting.plan();
    assert_eq!((plan.kind, shown(&plan)), (PlanKind::Explicit, "2.1>1.10 (1.1>2.10)".to_owned()));
    assert_eq!(plan.lanes.iter().map(|lane| lane.weight).collect::<Vec<_>>(), [3, 7]);
    setting.wish.kind = Some(PlanKind::Mesh);
    assert_eq!(setting.try_plan(), Err(PlanError::LanesUnasked(PlanKind::Mesh)));
    setting.wish = Wish { kind: Some(PlanKind::Explicit), ..Wish::default() };
    assert_eq!(setting.try_plan(), Err(PlanError::NoLanes));
}

#[test]
fn what_cannot_be_planned_is_refused() {
    assert_eq!(Setting::new(&TWO, &[]).try_plan(), Err(PlanError::NoPortals));
    let six = [("eth0", "fd00::1/64")];
    let unreached = Setting::new(&six, &["10.0.1.10"]).from(&["fd00::1"]).try_plan();
    assert_eq!(unreached, Err(PlanError::Unreached("IPv4".to_owned())));
    let ports: Vec<_> = (1..10).map(|n| (format!("eth{n}"), format!("10.0.1.{n}/24"))).collect();
    let ports: Vec<_> = ports.iter().map(|(name, network)| (name.as_str(), network.as_str())).collect();
    let mesh =
        Setting::new(&ports, &["10.0.1.20", "10.0.1.21", "10.0.1.22", "10.0.1.23"]).kind(PlanKind::Mesh);
    assert_eq!(mesh.try_plan(), Err(PlanError::TooMany(36)));
}

#[test]
fn kinds_are_read_as_they_are_printed() {
    for name in PLAN_KINDS.split(", ") {
        assert_eq!(name.parse::<PlanKind>().unwrap().to_string(), name);
    }
    let said = "meshy".parse::<PlanKind>().unwrap_err().to_string();
    assert!(said.contains("`meshy`") && said.contains("paired"), "{said}");
}
