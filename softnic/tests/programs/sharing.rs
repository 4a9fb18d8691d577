//! Steps with windows, scopes and frozen buffers.

use std::{
    sync::atomic::{AtomicUsize, Ordering},
    thread,
};

use verbs::{
    Buf, QueuePair, RemoteAccess, RemoteRegion, Reset, SharedBuf,
    mw::WindowType,
    op,
    scope::{Scoped, ScopedBuf},
};

use crate::{
    end::{End, LEN, Work, bring_up, content},
    machine::{Machine, run, unposted},
};

/// Number of times that a step lets two threads give up a buffer.
const RACES: usize = 4;

impl Machine<'_> {
    /// Binds a window to the middle of a region. The peer writes through the window before its end, and after.
    pub(crate) fn window(&mut self, host: usize) {
        let (pd, peer) = (self.ends[host].pd.clone(), 1 - host);
        let kinds = [WindowType::Type1, WindowType::Type2];
        let Ok(region) = pd.alloc_for_windows(3 * LEN) else {
            return;
        };
        if self.ends.iter().any(|end| end.owned.is_empty()) {
            return;
        }
        let work = self.ends[host].take(8).unwrap();
        let write = self.ends[peer].take(LEN).unwrap();
        let written = content(write.context);
        let kind = kinds[(work.context % 2) as usize];
        let mut window = pd.alloc_mw(kind).unwrap();
        let qp = self.ends[host].qp.as_mut().unwrap();
        let part = region.slice(LEN..2 * LEN);
        match qp.bind_window(&mut window, &part, RemoteAccess::WRITE, work) {
            Err(refused) => {
                self.ends[host].refused(vec![unposted(refused)], &mut self.contents);
                self.ends[peer].refused(vec![write], &mut self.contents);
            }
            Ok(token) => {
                self.settle();
                let number = write.context;
                let qp = self.ends[peer].qp.as_mut().unwrap();
                if let Err(refused) = qp.post(op::Write::new(write, token)) {
                    let work = unposted(refused).into_work();
                    self.ends[peer].refused(vec![work], &mut self.contents);
                }
                // The write may be in flight at the end of the window.
                run(&self.fabric, number % 8);
            }
        }
        drop(window);
        let before = slots(&region);
        assert_eq!(
            (before[0], before[2]),
            ([0; LEN], [0; LEN]),
            "memory around a window"
        );
        assert!(
            before[1] == [0; LEN] || before[1] == written,
            "memory of a window"
        );
        self.tally.windows += u64::from(before[1] == written);
        self.settle();
        assert_eq!(slots(&region), before, "memory behind the end of a window");
    }

    /// A message from a frozen buffer to a borrowed array, whose queue pair is of a scope that ends with the requests in
    /// flight. The program reads the frozen buffer all the time.
    pub(crate) fn scope(&mut self, host: usize) {
        self.heal();
        let peer = 1 - host;
        if self.ends.iter().any(|end| end.is_cq_failed) {
            return;
        }
        let Some(work) = self.ends[peer].take(LEN) else {
            return;
        };
        self.ends.iter_mut().for_each(End::restore_cq);
        let number = work.context;
        let expected = content(number);
        let frozen = work.work.freeze();
        let sender: QueuePair<verbs::Rc, Reset, SharedBuf, Work> = self.ends[peer].create_qp();
        let (pd, gid) = (self.ends[host].pd.clone(), self.ends[host].gid);
        let mut target = [0; LEN];
        let sender = verbs::scope(&pd, |scope| {
            let cq = &self.ends[host].cq;
            let builder = pd.qp_builder::<verbs::Rc>(cq, cq);
            let qp: QueuePair<verbs::Rc, Reset, Scoped<'_, Work>, ScopedBuf<'_>> =
                scope.create_qp(builder).unwrap();
            let (num, peer_num) = (qp.qp_num(), sender.qp_num());
            let mut qp = bring_up(qp, (self.ends[peer].gid, peer_num));
            let mut sender = bring_up(sender, (gid, num));
            qp.post_recv(scope.register(&mut target).unwrap())
                .map_err(|refused| refused.error)
                .unwrap();
            sender
                .post(op::Send::new(frozen.clone()))
                .map_err(|refused| refused.error)
                .unwrap();
            run(&self.fabric, number % 8);
            sender
        });
        assert_eq!(*frozen, expected, "a frozen buffer in a request");
        let before = target;
        assert!(before == [0; LEN] || before == expected, "a borrowed array");
        self.tally.scopes += u64::from(before == expected);
        self.settle();
        assert_eq!(target, before, "a borrowed array after its scope");
        assert_eq!(*frozen, expected, "a frozen buffer after its request");
        drop(sender.destroy().map_err(|refused| refused.error).unwrap());
        let buf = frozen.thaw().expect("a frozen buffer without an owner");
        self.ends[peer].keep(buf, &mut self.contents);
    }

    /// Two owners of a frozen buffer give up their handles at the same time; one gets the buffer.
    pub(crate) fn thaw(&mut self, host: usize) {
        let Some(work) = self.ends[host].take(LEN) else {
            return;
        };
        let expected = content(work.context);
        let mut buf = work.work;
        for _ in 0..RACES {
            buf = thaw_twice(buf);
        }
        assert_eq!(*buf, expected, "a frozen buffer");
        self.ends[host].keep(buf, &mut self.contents);
        self.tally.thaws += 1;
    }
}

/// Freezes a buffer, and gives up two handles at the same time.
fn thaw_twice(buf: Buf) -> Buf {
    let frozen = buf.freeze();
    let other = frozen.clone();
    let waiting = AtomicUsize::new(2);
    // No barrier: the scheduler wakes one thread after the other.
    let thaw = |handle: SharedBuf| {
        waiting.fetch_sub(1, Ordering::Relaxed);
        while waiting.load(Ordering::Relaxed) > 0 {
            thread::yield_now();
        }
        handle.thaw()
    };
    let thawed = thread::scope(|scope| {
        let thread = scope.spawn(|| thaw(other));
        [thaw(frozen), thread.join().unwrap()]
    });
    let mut thawed = thawed.into_iter().flatten();
    let buf = thawed.next().expect("a frozen buffer without an owner");
    assert!(thawed.next().is_none(), "a frozen buffer with two owners");
    buf
}

/// The three slots of a region.
fn slots(region: &RemoteRegion) -> [[u8; LEN]; 3] {
    [0, 1, 2].map(|slot| {
        let mut bytes = [0; LEN];
        region.read(slot * LEN, &mut bytes);
        bytes
    })
}
