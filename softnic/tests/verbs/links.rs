//! Properties of a host's port: the MTU of its link, its numbers, and the path of a received datagram.

use std::{collections::BTreeSet, thread, time::Duration};

use ibverbs_sys as ffi;
use softnic::{Fabric, Host, Rule};
use verbs::{
    Buf, Init, QueuePair, RemoteAccess, Rtr, Rts, Ud, WcStatus,
    ah::{AddressVector, Addressed, GRH_LEN},
    attr::Mtu,
    op,
    qp::{Attributes, Psn, WrOpcode},
};

use crate::end::{Connected, End, TEST_TIMEOUT};

const QKEY: u32 = 0x11;

type Datagrams = QueuePair<Ud, Rts, Addressed<Buf>>;

fn datagram_qp(end: &End) -> Datagrams {
    let builder = end.pd.qp_builder::<Ud>(&end.cq, &end.cq);
    let qp = builder.max_send_wr(4).max_recv_wr(4).create_for().unwrap();
    let qp = qp.to_init(&Attributes::<Ud, Init>::new(1, QKEY)).unwrap();
    let qp = qp.to_rtr(&Attributes::<Ud, Rtr>::new()).unwrap();
    qp.to_rts(&Attributes::<Ud, Rts>::new(Psn::default()))
        .unwrap()
}

#[test]
fn port_has_the_mtu_of_its_link_and_longer_frames_are_lost() {
    // As `iboe_get_mtu` of Linux: the MTU of an interface, and of the port.
    let rows = [
        (352, Mtu::B256),
        (1500, Mtu::B1024),
        (2048 + 95, Mtu::B1024),
        (2048 + 96, Mtu::B2048),
        (4200, Mtu::B4096),
        (9000, Mtu::B4096),
    ];
    for (link_mtu, expected) in rows {
        let fabric = Fabric::new().link_mtu(link_mtu);
        let host = fabric.host("10.9.0.1".parse().unwrap());
        let port = End::new(&host).ctx.query_port(1).unwrap();
        assert_eq!(port.active_mtu(), expected, "{link_mtu}");
    }
    let mut pair = Connected::new(Fabric::new().link_mtu(1500));
    let mut exchange = |len: usize| {
        pair.qp_b.post_recv(pair.b.filled(&[0; 4096])).unwrap();
        let sent = pair.a.filled(&vec![1; len]);
        pair.qp_a.post(op::Send::new(sent)).unwrap();
        pair.a.reap(&mut pair.qp_a, 1)[0].status
    };
    assert_eq!(exchange(1024), WcStatus::SUCCESS);
    // The queue pairs of this test have a path MTU of 1024 bytes: a message of several packets passes as well.
    assert_eq!(exchange(4096), WcStatus::SUCCESS);
}

#[test]
fn datagram_beyond_the_links_mtu_is_not_sent() {
    let fabric = Fabric::new().link_mtu(1500);
    let [a, b] = ["10.9.0.1", "10.9.0.2"].map(|addr| fabric.host(addr.parse().unwrap()));
    let (mut a, mut b) = (End::new(&a), End::new(&b));
    let (mut from, mut to) = (datagram_qp(&a), datagram_qp(&b));
    to.post_recv(b.pd.alloc_buf(GRH_LEN + 4096).unwrap())
        .unwrap();
    let ah = a.pd.create_ah(&AddressVector::global(1, 0, b.gid)).unwrap();
    for len in [1025, 1024] {
        let message = Addressed::new(a.pd.alloc_buf(len).unwrap(), &ah);
        from.post(op::SendTo::new(message, to.qp_num(), QKEY))
            .unwrap();
    }
    let mut sent = 0;
    while sent < 2 {
        for wc in a.cq.wait(TEST_TIMEOUT).unwrap() {
            assert_eq!(wc.status(), WcStatus::SUCCESS);
            assert!(from.complete(wc).is_ok());
            sent += 1;
        }
    }
    let received: Vec<_> = b.cq.wait(TEST_TIMEOUT).unwrap().collect();
    assert_eq!(received.len(), 1);
    assert_eq!(received[0].byte_len(), GRH_LEN + 1024);
    for wc in received {
        assert!(to.complete(wc).is_ok());
    }
}

/// GUID, first queue pair and first RKey of a host.
fn numbers(host: &Host) -> (String, u32, u32) {
    let guid = host.run(|| {
        let devices = verbs::devices().unwrap();
        devices.iter().next().unwrap().guid().to_string()
    });
    let end = End::new(host);
    let region = end.pd.alloc_remote(8, RemoteAccess::READ).unwrap();
    (guid, end.qp().qp_num().into(), region.token().rkey)
}

#[test]
fn numbers_of_hosts_differ_and_are_those_of_the_seed() {
    let of = |fabric: Fabric| {
        ["10.9.0.1", "10.9.0.2"].map(|addr| numbers(&fabric.host(addr.parse().unwrap())))
    };
    let of_seed = |seed| of(Fabric::seeded(seed));
    assert_eq!(of_seed(7), of_seed(7));
    let all: Vec<_> = [7, 8, 9].into_iter().flat_map(of_seed).collect();
    let guids: BTreeSet<_> = all.iter().map(|(guid, ..)| guid).collect();
    let qps: BTreeSet<_> = all.iter().map(|(_, qp, _)| qp).collect();
    let keys: BTreeSet<_> = all.iter().map(|(.., key)| key).collect();
    assert_eq!((guids.len(), qps.len(), keys.len()), (6, 6, 6), "{all:?}");
    // Without a seed, of the fabric or of the environment, they are those of no other fabric.
    let has_seed = std::env::var_os("SOFTNIC_SEED").is_some();
    assert_eq!(of(Fabric::new()) == of(Fabric::new()), has_seed);
}

#[test]
fn vector_of_a_received_datagram_is_its_way_back() {
    for addrs in [["10.9.0.1", "10.9.0.2"], ["fd09::1", "fd09::2"]] {
        let fabric = Fabric::new();
        let [a, b] = addrs.map(|addr| End::new(&fabric.host(addr.parse().unwrap())));
        let (mut from, mut to) = (datagram_qp(&a), datagram_qp(&b));
        let mut b = b;
        to.post_recv(b.pd.alloc_buf(GRH_LEN + 8).unwrap()).unwrap();
        let mut vector = AddressVector::global(1, 0, b.gid);
        if let Some(grh) = &mut vector.grh {
            (grh.hop_limit, grh.traffic_class, grh.flow_label) = (9, 0x28, 0x1_2345);
        }
        let ah = a.pd.create_ah(&vector).unwrap();
        let message = Addressed::new(a.pd.alloc_buf(8).unwrap(), &ah);
        from.post(op::SendTo::new(message, to.qp_num(), QKEY))
            .unwrap();
        let mut completions = b.cq.wait(TEST_TIMEOUT).unwrap();
        let Ok(verbs::Completed::Receive(done)) = to.complete(completions.next().unwrap()) else {
            unreachable!()
        };
        let received = done.received().unwrap();
        let back = b.pd.vector_from_wc(&done, received, 1).unwrap();
        let grh = back.grh.unwrap();
        assert_eq!(grh.dgid, a.gid);
        // IPv4 has no flow label.
        let label = if a.gid.to_string().contains("ffff:") {
            0
        } else {
            0x1_2345
        };
        let fields = (grh.hop_limit, grh.traffic_class, grh.flow_label);
        assert_eq!(fields, (9, 0x28, label));
    }
}

/// `ibv_query_qp_data_in_order`: only for writes of a reliable connection, on links that keep the order, without a rule by which a
/// write comes in steps, or a packet of it late.
#[test]
fn bytes_of_a_write_are_promised_in_order_on_links_that_keep_the_order() {
    let is_x86 = cfg!(any(target_arch = "x86", target_arch = "x86_64"));
    let promises = |fabric: Fabric| {
        let this = Connected::new(fabric);
        let in_order = |opcode| this.qp_b.data_in_order(opcode);
        assert!(!in_order(WrOpcode::SEND) && !in_order(WrOpcode::RDMA_READ));
        let query = |flags| {
            let opcode = ffi::ibv_wr_opcode::IBV_WR_RDMA_WRITE;
            // SAFETY: a live queue pair.
            unsafe { ffi::ibv_query_qp_data_in_order(this.qp_b.as_raw(), opcode, flags) }
        };
        let device = query(0b11);
        assert_eq!(query(0b01), if is_x86 { device } else { 0 });
        assert_eq!(query(0b100), 0, "an unknown flag");
        assert_eq!(in_order(WrOpcode::RDMA_WRITE), is_x86 && device == 3);
        device
    };
    assert_eq!(promises(Fabric::seeded(7)), 0);
    assert_eq!(promises(Fabric::seeded(7).in_order()), 3);
    let with = |rule| promises(Fabric::seeded(7).in_order().rule(rule));
    assert_eq!(with(Rule::Placement), 0);
    assert_eq!(with(Rule::Torn), 0);
    assert_eq!(with(Rule::NotVisible), 0);
    assert_eq!(with(Rule::StaleFields), 3);
    let datagrams = Fabric::seeded(7).in_order();
    let datagrams = datagram_qp(&End::new(&datagrams.host("10.9.0.1".parse().unwrap())));
    assert!(!datagrams.data_in_order(WrOpcode::RDMA_WRITE));
}

/// A reader that has seen the last word of a write sees the first one, also over lossy links.
#[test]
fn last_word_of_a_write_is_written_after_the_first_one() {
    const LEN: usize = 16 << 10;
    const WRITES: u64 = 300;
    let micros = Duration::from_micros;
    let fabric = Fabric::seeded(7).in_order().loss(0.01);
    let mut this = Connected::new(fabric.delay(micros(1)..micros(20)));
    let region = this.b.pd.alloc_remote(LEN, RemoteAccess::WRITE).unwrap();
    let token = region.token();
    thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let mut last = 0;
            while last < WRITES {
                last = region.load(LEN - 8);
                let first = region.load(0);
                assert!(first >= last, "{first} and {last}");
            }
        });
        for number in 1..=WRITES {
            let source = this.a.filled(&number.to_ne_bytes().repeat(LEN / 8));
            this.qp_a.post(op::Write::new(source, token)).unwrap();
            let done = this.a.reap(&mut this.qp_a, 1).pop().unwrap();
            assert_eq!(done.status, WcStatus::SUCCESS);
        }
        reader.join().unwrap();
    });
}
