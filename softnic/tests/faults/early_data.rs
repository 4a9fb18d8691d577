//! Messages before the event of an established connection.

use std::{collections::BTreeSet, time::Duration};

use cm::{ConnParam, Event, EventChannel};
use softnic::{Fabric, Rule};
use verbs::{CompletionQueue, ProtectionDomain, qp::QpNum};

use crate::rules::shown_by;

const TEST_TIMEOUT: Duration = Duration::from_secs(60);

const CONNECTIONS: u64 = 16;

fn next(channel: &EventChannel) -> Event {
    channel.wait_timeout(TEST_TIMEOUT).unwrap().unwrap()
}

/// Whether the passive end is not established once the active end may send; it is in the end. Adds the numbers of the queue
/// pairs.
fn is_early(channel: &EventChannel, addr: std::net::SocketAddr, numbers: &mut Vec<QpNum>) -> bool {
    let id = channel.create_id().unwrap();
    id.resolve_addr(None, addr, TEST_TIMEOUT).unwrap();
    let Event::AddrResolved(id) = next(channel) else {
        panic!("no address");
    };
    id.resolve_route(TEST_TIMEOUT).unwrap();
    let Event::RouteResolved(id) = next(channel) else {
        panic!("no route");
    };
    let ctx = id.context().unwrap();
    let (pd, cq) = (ctx.alloc_pd().unwrap(), ctx.cq_builder(8).create().unwrap());
    let create = |pd: &ProtectionDomain, cq: &CompletionQueue| {
        pd.qp_builder::<verbs::Rc>(cq, cq).create().unwrap()
    };
    let active_qp = id.init_qp(create(&pd, &cq)).unwrap();
    numbers.push(active_qp.qp_num());
    id.connect(&active_qp, &ConnParam::new()).unwrap();
    let Event::ConnectRequest(request) = next(channel) else {
        panic!("no request");
    };
    let passive_qp = request.id().init_qp(create(&pd, &cq)).unwrap();
    numbers.push(passive_qp.qp_num());
    let _passive_qp = request.accept(passive_qp, &ConnParam::new()).unwrap();
    let Event::ConnectResponse(response) = next(channel) else {
        panic!("no response");
    };
    let _active = response.establish(active_qp).unwrap();
    // The active end may send from now on.
    let event = channel.try_next().unwrap();
    let is_early = event.is_none();
    // The corrected program takes messages before the event, which comes in the end.
    let event = event.unwrap_or_else(|| next(channel));
    assert!(matches!(event, Event::Established(_)), "{event:?}");
    is_early
}

/// Makes connections on devices with a rule. Returns the number of those with an early active end, and the numbers of the queue
/// pairs.
fn connections(rule: Option<Rule>) -> (u64, Vec<QpNum>) {
    let fabric = Fabric::seeded(7).keep_objects();
    let fabric = match rule {
        Some(rule) => fabric.rule(rule),
        None => fabric,
    };
    let host = fabric.host([10, 9, 0, 1].into());
    host.run(|| {
        let channel = EventChannel::new().unwrap();
        let mut id = channel.create_id().unwrap();
        let addr = std::net::SocketAddr::from(([10, 9, 0, 1], 0));
        id.bind(addr).unwrap();
        let listener = id.listen(8).unwrap();
        let addr = listener.local_addr().unwrap();
        let mut numbers = Vec::new();
        let early = (0..CONNECTIONS).filter(|_| is_early(&channel, addr, &mut numbers));
        (early.count() as u64, numbers)
    })
}

#[test]
fn active_end_sends_before_the_passive_end_is_established() {
    shown_by(Rule::EarlyData, |rule| connections(rule).0);
}

/// A peer that knows the number of an ended connection's queue pair for some time rejects a new connection with it.
#[test]
fn number_of_a_connection_is_not_issued_again_at_once() {
    let (_, numbers) = connections(Some(Rule::Reuse));
    let distinct: BTreeSet<_> = numbers.iter().map(|number| number.get()).collect();
    assert_eq!(distinct.len(), numbers.len(), "{numbers:?}");
}
