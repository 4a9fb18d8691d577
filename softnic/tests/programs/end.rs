//! One host of a program: the device's objects, and the buffers with their expected bytes.

use std::collections::HashMap;

use softnic::{Failing, Host};
use verbs::{
    Buf, Completed, CompletionQueue, Context, Gid, Init, ProtectionDomain, QueuePair, RemoteAccess,
    RemoteRegion, Reset, Rtr, Rts, WcStatus, WorkCompletion,
    ah::AddressVector,
    op::SendOps,
    qp::{AckTimeout, Attributes, Psn, QpNum, RetryCount},
    work::With,
};

/// Length of a buffer and of a slot in bytes.
pub(crate) const LEN: usize = 64;

/// Number of buffers, neighbours in one registration.
pub(crate) const BUFS: usize = 24;

/// Number of slots of a region. Peers get tokens of the even ones; the odd ones are guards between them.
pub(crate) const SLOTS: usize = 8;

/// The slot of the numbers that peers add to.
pub(crate) const NUMBER: usize = 6;

/// Operations of extended requests.
const OPS: SendOps = SendOps::SEND
    .union(SendOps::SEND_WITH_IMM)
    .union(SendOps::RDMA_WRITE)
    .union(SendOps::RDMA_READ)
    .union(SendOps::ATOMIC_FETCH_AND_ADD);

/// Number of entries of a completion queue, for the completions of all queue pairs of a program.
const ENTRIES: u32 = 2048;

/// A buffer with the number of its content.
pub(crate) type Work = With<Buf, u64>;

/// A connected queue pair.
pub(crate) type Connection = QueuePair<verbs::Rc, Rts, Work, Work>;

/// The bytes of a content: the number, and a pattern that depends on the number.
pub(crate) fn content(number: u64) -> [u8; LEN] {
    let mut bytes = [0; LEN];
    bytes[..8].copy_from_slice(&number.to_le_bytes());
    for (index, byte) in bytes.iter_mut().enumerate().skip(8) {
        let mixed = (number + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (index % 32);
        *byte = mixed.to_le_bytes()[0] ^ index.to_le_bytes()[0];
    }
    bytes
}

/// The number of a content.
pub(crate) fn number_of(bytes: &[u8]) -> u64 {
    u64::from_le_bytes(bytes[..8].try_into().unwrap())
}

/// Contents handed to the devices of a fabric.
#[derive(Default)]
pub(crate) struct Contents {
    next: u64,
    /// Sent contents, with their lengths.
    sent: HashMap<u64, usize>,
    /// Number of received messages.
    pub(crate) messages: u64,
    /// Contents written to a slot, with the slots and their hosts.
    written: HashMap<u64, (usize, usize)>,
}

impl Contents {
    /// The number of a new content.
    pub(crate) fn issue(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    pub(crate) fn send(&mut self, work: &Work) {
        self.sent.insert(work.context, work.work.len());
    }

    /// The device refused a request with this content.
    pub(crate) fn refuse(&mut self, number: u64) {
        self.sent.remove(&number);
        self.written.remove(&number);
    }

    pub(crate) fn write(&mut self, number: u64, host: usize, slot: usize) {
        self.written.insert(number, (host, slot));
    }

    /// Checks a received message.
    fn check_message(&mut self, bytes: &[u8], imm: Option<u32>) {
        self.messages += 1;
        let number = number_of(bytes);
        assert_eq!(
            self.sent.get(&number),
            Some(&bytes.len()),
            "message {number} was never posted with this length"
        );
        assert_eq!(bytes, &content(number)[..bytes.len()], "message {number}");
        assert!(
            imm.is_none_or(|imm| u64::from(imm) == number),
            "immediate data {imm:?} of message {number}"
        );
    }

    /// Checks the bytes of a slot.
    fn check_slot(&self, bytes: &[u8], initial: u64, (host, slot): (usize, usize)) {
        let number = number_of(bytes);
        let is_written = self.written.get(&number) == Some(&(host, slot));
        assert!(
            is_written || number == initial,
            "slot {slot} of host {host} has content {number}"
        );
        assert_eq!(bytes, content(number), "slot {slot} of host {host}");
    }
}

pub(crate) struct End {
    pub(crate) index: usize,
    pub(crate) qp: Option<Connection>,
    /// Buffers of the program, with the numbers of their contents.
    pub(crate) owned: Vec<Work>,
    /// Memory of peers.
    pub(crate) region: RemoteRegion,
    /// The numbers of the first contents of the slots.
    initial: Vec<u64>,
    /// Number of completions whose work was dropped.
    pub(crate) dropped: usize,
    pub(crate) failing: Vec<Failing>,
    /// Whether a resize of the completion queue has failed.
    pub(crate) is_cq_failed: bool,
    pub(crate) cq: CompletionQueue,
    pub(crate) pd: ProtectionDomain,
    pub(crate) gid: Gid,
    pub(crate) ctx: Context,
    pub(crate) host: Host,
}

impl End {
    pub(crate) fn new(host: Host, index: usize, contents: &mut Contents) -> Self {
        let ctx = host.run(|| verbs::devices().unwrap().first().unwrap().open().unwrap());
        let (pd, cq) = (ctx.alloc_pd().unwrap(), ctx.create_cq(ENTRIES).unwrap());
        let gid = ctx.query_gid(1, 0).unwrap().unwrap();
        let all = RemoteAccess::WRITE | RemoteAccess::READ | RemoteAccess::ATOMIC;
        let region = pd.alloc_remote(LEN * SLOTS, all).unwrap();
        let initial: Vec<u64> = (0..SLOTS).map(|_| contents.issue()).collect();
        for (slot, number) in initial.iter().enumerate() {
            region.write(slot * LEN, &content(*number));
        }
        let mut rest = pd.alloc_buf(LEN * BUFS).unwrap();
        let mut bufs = Vec::new();
        while rest.capacity() > LEN {
            let tail = rest.split_off(LEN);
            bufs.push(std::mem::replace(&mut rest, tail));
        }
        bufs.push(rest);
        let mut this = Self {
            index,
            qp: None,
            owned: Vec::new(),
            region,
            initial,
            dropped: 0,
            failing: Vec::new(),
            is_cq_failed: false,
            cq,
            pd,
            gid,
            ctx,
            host,
        };
        bufs.into_iter().for_each(|buf| this.keep(buf, contents));
        this
    }

    /// Fills a returned buffer with a new content.
    pub(crate) fn keep(&mut self, mut buf: Buf, contents: &mut Contents) {
        let number = contents.issue();
        buf.set_full();
        buf.copy_from_slice(&content(number));
        self.owned.push(Work::new(buf, number));
    }

    /// Checks a buffer that the device only read, or did not get, and keeps the buffer.
    pub(crate) fn returned(&mut self, mut work: Work, contents: &mut Contents) {
        work.work.set_full();
        assert_eq!(
            *work.work,
            content(work.context),
            "a buffer that the device only read"
        );
        self.keep(work.work, contents);
    }

    /// Keeps the buffers of refused requests.
    pub(crate) fn refused(&mut self, works: Vec<Work>, contents: &mut Contents) {
        for work in works {
            contents.refuse(work.context);
            self.returned(work, contents);
        }
    }

    /// Takes a buffer, for a transfer of `len` bytes.
    pub(crate) fn take(&mut self, len: usize) -> Option<Work> {
        let mut work = self.owned.pop()?;
        work.work.set_len(len);
        Some(work)
    }

    /// Checks the memory of the program.
    pub(crate) fn check(&self, contents: &Contents) {
        for work in &self.owned {
            assert_eq!(
                *work.work,
                content(work.context),
                "an owned buffer of host {} changed",
                self.index
            );
        }
        let mut bytes = [0; LEN];
        for slot in (0..SLOTS).filter(|slot| *slot != NUMBER) {
            self.region.read(slot * LEN, &mut bytes);
            contents.check_slot(&bytes, self.initial[slot], (self.index, slot));
        }
    }

    pub(crate) fn create_qp<SW: 'static>(&self) -> QueuePair<verbs::Rc, Reset, SW, Work> {
        let builder = self.pd.qp_builder::<verbs::Rc>(&self.cq, &self.cq);
        let builder = builder
            .max_send_wr(8)
            .max_recv_wr(8)
            .max_inline_data(u32::try_from(LEN).unwrap());
        builder.send_ops(OPS).create_for().unwrap()
    }

    /// Prepares the completion queue for new queue pairs: makes it large again, or a new one after a failed resize, when no
    /// queue pair is left.
    pub(crate) fn restore_cq(&mut self) {
        if self.is_cq_failed {
            self.cq = self.ctx.create_cq(ENTRIES).unwrap();
            self.is_cq_failed = false;
        } else {
            self.cq.resize(ENTRIES).unwrap();
        }
    }

    /// Takes completions, the last one first if `dropping` is odd. One in `dropping` is dropped without its work, if not 0.
    pub(crate) fn poll(&mut self, dropping: usize, contents: &mut Contents) -> usize {
        let (mut returned, mut count) = (Vec::new(), 0);
        // A failed call takes nothing.
        let Ok(completions) = self.cq.poll() else {
            return 0;
        };
        assert!(
            !self.is_cq_failed,
            "a poll of a queue that may have no memory"
        );
        let mut completions: Vec<_> = completions.collect();
        let is_reversed = dropping % 2 == 1;
        if is_reversed {
            completions.reverse();
        }
        for wc in completions {
            count += 1;
            check_failed(&wc);
            if dropping > 0 && count % dropping == 0 {
                self.dropped += 1;
                continue;
            }
            let Some(qp) = &mut self.qp else { continue };
            let is_current = wc.qp_id() == qp.id();
            match qp.complete(wc) {
                Ok(completed) => returned.push(Returned::of(completed)),
                // A later completion has dropped the work.
                Err(_) if is_current => {
                    assert!(is_reversed, "a stale completion, in order");
                    self.dropped += 1;
                }
                // A completion of a former queue pair has no work.
                Err(_) => {}
            }
        }
        for Returned {
            work,
            message,
            is_written,
        } in returned
        {
            match message {
                Some((len, imm)) => {
                    contents.check_message(&work.work[..len], imm);
                    let rest = content(work.context);
                    assert_eq!(work.work[len..], rest[len..], "bytes behind a message");
                    self.keep(work.work, contents);
                }
                None if is_written => self.keep(work.work, contents),
                None => self.returned(work, contents),
            }
        }
        count
    }
}

/// A failed completion has only a status: the other fields are undefined.
fn check_failed(wc: &WorkCompletion<'_>) {
    if wc.status() != WcStatus::SUCCESS {
        let flags = (wc.imm_data(), wc.invalidated_rkey(), wc.has_grh());
        assert_eq!(flags, (None, None, false), "fields of a failed completion");
        let path = (wc.opcode(), wc.src_qp(), wc.slid(), wc.sl());
        assert_eq!(
            path,
            (None, None, None, None),
            "fields of a failed completion"
        );
    }
}

/// Work returned by a completion.
struct Returned {
    work: Work,
    /// Length and immediate data of a received message.
    message: Option<(usize, Option<u32>)>,
    /// Whether the device may have written to the work.
    is_written: bool,
}

impl Returned {
    fn of(completed: Completed<'_, Work, Work>) -> Self {
        match completed {
            Completed::Send(done) => {
                let (_, work) = done.into_parts();
                // Reads and atomics have odd lengths.
                let is_written = work.work.len() % 2 == 1 || work.work.len() == 8;
                Self {
                    work,
                    message: None,
                    is_written,
                }
            }
            Completed::Receive(done) => {
                let (len, imm) = (done.byte_len(), done.imm_data());
                let (status, work) = done.into_parts();
                let message = (status == WcStatus::SUCCESS).then_some((len, imm));
                Self {
                    work,
                    message,
                    is_written: true,
                }
            }
        }
    }
}

/// Connects two queue pairs.
pub(crate) fn bring_up<SW, RW>(
    qp: QueuePair<verbs::Rc, Reset, SW, RW>,
    peer: (Gid, QpNum),
) -> QueuePair<verbs::Rc, Rts, SW, RW> {
    let all = RemoteAccess::WRITE | RemoteAccess::READ | RemoteAccess::ATOMIC;
    let vector = AddressVector::global(1, 0, peer.0);
    let psn = Psn::from_low_bits(0xff_fff0);
    let init = Attributes::<verbs::Rc, Init>::new(1).access(all);
    let rtr = Attributes::<verbs::Rc, Rtr>::new(&vector, peer.1, psn).max_dest_rd_atomic(4);
    let rts = Attributes::<verbs::Rc, Rts>::new(psn)
        .timeout(AckTimeout::new(8).unwrap())
        .retry_count(RetryCount::new(3).unwrap())
        .max_rd_atomic(4);
    let qp = qp.to_init(&init).map_err(|refused| refused.error).unwrap();
    let qp = qp.to_rtr(&rtr).map_err(|refused| refused.error).unwrap();
    qp.to_rts(&rts).map_err(|refused| refused.error).unwrap()
}
