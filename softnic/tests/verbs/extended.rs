//! Extended completion queues and queue pairs: times of completions, and batches of requests.

use std::time::{Duration, SystemTime};

use softnic::Fabric;
use verbs::{
    Buf, Init, QueuePair, RemoteAccess, Rts, WcStatus,
    cq::{ExtendedCq, WcFields, WcOpcode},
    op::{self, Placement, SendOps},
};

use crate::end::{End, TEST_TIMEOUT};

const TIMES: WcFields =
    WcFields::COMPLETION_TIMESTAMP.union(WcFields::COMPLETION_TIMESTAMP_WALLCLOCK);

/// Two connected queue pairs of one host, both completing in one extended queue with times.
struct Timed {
    cq: ExtendedCq,
    a: QueuePair<verbs::Rc, Rts>,
    b: QueuePair<verbs::Rc, Rts>,
    end: End,
    /// The fabric. The last field, so dropped last.
    fabric: Fabric,
}

impl Timed {
    fn new(fabric: Fabric) -> Self {
        let end = End::new(&fabric.host("10.9.0.1".parse().unwrap()));
        let cq = end.ctx.cq_ex_builder(64).with(TIMES).waitable();
        let cq = cq.create().unwrap();
        let make = || {
            let builder = end.pd.qp_builder::<verbs::Rc>(&cq, &cq);
            let builder = builder.max_send_wr(4).max_recv_wr(4);
            builder.send_ops(SendOps::SEND).create().unwrap()
        };
        let (a, b) = (make(), make());
        let (num_a, num_b) = (a.qp_num(), b.qp_num());
        let a = end.bring_up(a, (&end, num_b));
        let b = end.bring_up(b, (&end, num_a));
        Self {
            cq,
            a,
            b,
            end,
            fabric,
        }
    }

    fn exchange(&mut self) {
        self.b.post_recv(self.end.pd.alloc_buf(8).unwrap()).unwrap();
        let mut batch = self.a.extended_batch().unwrap();
        batch
            .push(op::Send::new(self.end.filled(b"message")))
            .unwrap();
        batch.post().map_err(|refused| refused.error).unwrap();
    }

    /// Timestamps and wall-clock times of all completions.
    fn times(&mut self, wait: bool) -> Vec<(u64, u64)> {
        let mut times = Vec::new();
        while let Some(mut polled) = if wait && times.len() < 2 {
            self.cq.wait(TEST_TIMEOUT).unwrap()
        } else {
            self.cq.poll().unwrap()
        } {
            while let Some(wc) = polled.next().unwrap() {
                assert_eq!(wc.status(), WcStatus::SUCCESS);
                let wall = wc.completion_wallclock_ns().unwrap();
                times.push((wc.completion_ts().unwrap(), wall));
                let wc = wc.into_work_completion();
                let Err(wc) = self.a.complete(wc) else {
                    continue;
                };
                assert!(self.b.complete(wc).is_ok());
            }
        }
        times
    }
}

fn since_1970() -> u64 {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    u64::try_from(now.unwrap().as_nanos()).unwrap()
}

#[test]
fn completion_times_lie_between_two_readings_of_the_clock() {
    let mut this = Timed::new(Fabric::new());
    let (clock, wall) = (this.end.ctx.query_clock().unwrap(), since_1970());
    this.exchange();
    let times = this.times(true);
    let (clock_end, wall_end) = (this.end.ctx.query_clock().unwrap(), since_1970());
    assert_eq!(times.len(), 2);
    // The two clocks of the system differ slightly.
    let slack = u64::try_from(Duration::from_secs(5).as_nanos()).unwrap();
    for (ts, wallclock) in times {
        assert!((clock..=clock_end).contains(&ts), "{clock} {ts}");
        let range = wall - slack..=wall_end + slack;
        assert!(range.contains(&wallclock), "{wall} {wallclock}");
    }
    let attr = this.end.ctx.query_device().unwrap();
    assert_eq!(attr.hca_core_clock(), 1_000_000, "ticks are nanoseconds");
}

#[test]
fn completion_times_of_a_manual_fabric_are_its_virtual_time() {
    let delay = Duration::from_micros(300);
    let fabric = Fabric::manual(7).delay(delay..delay);
    let mut this = Timed::new(fabric);
    this.exchange();
    let mut times = this.times(false);
    assert_eq!(times, []);
    while this.fabric.step() {
        let clock = this.end.ctx.query_clock().unwrap();
        let completed = this.times(false);
        assert!(
            completed
                .iter()
                .all(|(ts, wall)| [*ts, *wall] == [clock; 2])
        );
        times.extend(completed);
    }
    // The message arrives after 0.3 ms, the acknowledgement after 0.6 ms.
    assert_eq!(times, [(300_000, 300_000), (600_000, 600_000)]);
}

#[test]
fn batch_refused_by_the_device_posts_nothing() {
    let mut this = Timed::new(Fabric::new());
    let raw = this.a.as_raw();
    // SAFETY: the queue pair exists, and was made for extended requests.
    let ex = unsafe { ibverbs_sys::ibv_qp_to_qp_ex(raw) };
    assert!(!ex.is_null());
    let byte = this.end.filled(b"!");
    for elements in [1, 2] {
        // The second batch ends with a request with more elements than the queue pair takes.
        // SAFETY: the queue pair exists, and has no other user.
        unsafe { ibverbs_sys::ibv_wr_start(ex) };
        for count in [1, elements] {
            let list = vec![sge(&byte); count];
            // SAFETY: a batch was begun, for this operation.
            unsafe { ibverbs_sys::ibv_wr_send(ex) };
            // SAFETY: the list exists during the call.
            unsafe { ibverbs_sys::ibv_wr_set_sge_list(ex, count, list.as_ptr()) };
        }
        if elements == 1 {
            // SAFETY: a batch was begun.
            unsafe { ibverbs_sys::ibv_wr_abort(ex) };
        } else {
            // SAFETY: a batch was begun.
            assert_eq!(unsafe { ibverbs_sys::ibv_wr_complete(ex) }, libc::EINVAL);
        }
    }
    // The first message that arrives is the next one posted.
    this.exchange();
    assert_eq!(this.times(true).len(), 2);
}

fn sge(buf: &Buf) -> ibverbs_sys::ibv_sge {
    ibverbs_sys::ibv_sge {
        addr: buf.as_ptr().addr() as u64,
        length: 1,
        lkey: 0,
    }
}

#[test]
fn queue_pair_without_send_operations_has_no_extended_interface() {
    let fabric = Fabric::new();
    let end = End::new(&fabric.host("10.9.0.1".parse().unwrap()));
    let qp = end.qp();
    let attributes = verbs::qp::Attributes::<verbs::Rc, Init>::new(1);
    let mut qp = qp.to_init(&attributes).map_err(|refused| refused.error);
    // SAFETY: the queue pair exists.
    let ex = unsafe { ibverbs_sys::ibv_qp_to_qp_ex(qp.as_mut().unwrap().as_raw()) };
    assert!(ex.is_null());
}

/// Extended capabilities of Linux's `ib_uverbs_device_cap_flags`.
const FLUSH_AND_ATOMIC_WRITE: u64 = 0b111 << 38;

#[test]
fn atomic_write_and_flushes_survive_loss() {
    let fabric = Fabric::seeded(7).loss(0.2);
    let hosts = ["10.9.0.1", "10.9.0.2"].map(|addr| fabric.host(addr.parse().unwrap()));
    let [mut a, b] = [End::new(&hosts[0]), End::new(&hosts[1])];
    let caps = a.ctx.query_device().unwrap().caps().bits();
    assert_eq!(caps & FLUSH_AND_ATOMIC_WRITE, FLUSH_AND_ATOMIC_WRITE);
    let make = |end: &End| {
        let builder = end
            .pd
            .qp_builder::<verbs::Rc>(&end.cq, &end.cq)
            .max_send_wr(4);
        let ops = SendOps::ATOMIC_WRITE | SendOps::FLUSH;
        builder.send_ops(ops).create().unwrap()
    };
    let (qp_a, qp_b) = (make(&a), make(&b));
    let (num_a, num_b) = (qp_a.qp_num(), qp_b.qp_num());
    let mut qp_a = a.bring_up(qp_a, (&b, num_b));
    let _qp_b = b.bring_up(qp_b, (&a, num_a));
    let access = RemoteAccess::WRITE | RemoteAccess::FLUSH_GLOBAL | RemoteAccess::FLUSH_PERSISTENT;
    let region = b.pd.alloc_remote(64, access).unwrap();
    let number = region.token().slice(8..16).unwrap();
    for round in 0..50_u64 {
        let work = [(); 3].map(|()| a.filled(b"kept"));
        let mut batch = qp_a.extended_batch().unwrap();
        let [first, second, third] = work;
        let value = round.to_ne_bytes();
        batch
            .push(op::AtomicWrite::new(first, number, value))
            .unwrap();
        let flush = op::Flush::new(second, number, Placement::GLOBAL);
        batch.push(flush).unwrap();
        let flush = op::Flush::new(third, region.token(), Placement::all());
        batch.push(flush.whole_region()).unwrap();
        batch.post().map_err(|refused| refused.error).unwrap();
        let done = a.reap(&mut qp_a, 3);
        assert!(done.iter().all(|done| done.status == WcStatus::SUCCESS));
        let opcodes: Vec<_> = done.iter().filter_map(|done| done.opcode).collect();
        let expected = [WcOpcode::ATOMIC_WRITE, WcOpcode::FLUSH, WcOpcode::FLUSH];
        assert_eq!(opcodes, expected);
        let names = opcodes.iter().map(|opcode| format!("{opcode:?}"));
        assert!(names.eq(["ATOMIC_WRITE", "FLUSH", "FLUSH"]));
        assert_eq!(region.load(8), round);
    }
}
