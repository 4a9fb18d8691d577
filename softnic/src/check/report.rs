//! Reports of the checker.

use std::fmt;

macro_rules! checks {
    ($($(#[doc = $doc:literal])* $variant:ident $title:literal $source:literal,)*) => {
        /// A fault of a program that uses verbs.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[non_exhaustive]
        pub enum Check {
            $(
                $(#[doc = $doc])*
                ///
                #[doc = concat!("Source: ", $source, ".")]
                $variant,
            )*
        }

        impl Check {
            /// All checks.
            pub const ALL: &[Self] = &[$(Self::$variant,)*];

            /// The fault in a few words.
            pub const fn title(self) -> &'static str {
                match self {
                    $(Self::$variant => $title,)*
                }
            }

            /// Manual page or other source of the rule that the program breaks.
            pub const fn source(self) -> &'static str {
                match self {
                    $(Self::$variant => $source,)*
                }
            }
        }
    };
}

checks! {
    /// The requests with a completion to come, and the completions not polled, exceed the size of a completion queue.
    CqTooSmall "completion queue too small" "ibv_poll_cq(3): \"the user should consume work completions at a rate that \
        prevents CQ overrun\"",
    /// A send queue is full of unsignaled requests: no completion frees a slot, on devices that free slots by polling.
    NoSignaledRequest "send queue without a signaled request" "ibv_post_send(3), ibv_create_qp(3): sq_sig_all",
    /// The memory of a send or a write has changed before its completion has been polled.
    SendMemoryChanged "send memory changed while posted" "ibv_post_send(3): \"The buffers used by a WR can only be safely \
        reused after WR the request is fully executed and a work completion has been retrieved\"",
    /// The program has written to the memory of a receive, a read or an atomic before the device has.
    TargetChanged "target memory changed while posted" "ibv_post_recv(3), ibv_post_send(3): \"The buffers used by a WR can \
        only be safely reused after WR the request is fully executed and a work completion has been retrieved\"",
    /// The device accesses memory that is not mapped, or freed by a program with `AddressSanitizer`.
    MemoryGone "memory unmapped or freed while the device accesses it" "ibv_post_send(3), ibv_reg_mr(3)",
    /// A send or a write without a fence reads memory that an outstanding read or atomic of its queue pair writes.
    UnfencedSource "memory of an outstanding read is sent without a fence" "ibv_post_send(3): IBV_SEND_FENCE",
    /// A local key does not allow the access of a request.
    LocalAccess "request outside of its region, domain or rights" "ibv_reg_mr(3), ibv_post_send(3)",
    /// A remote key does not allow the access of a request.
    RemoteAccess "request outside of the peer's region, domain or rights" "ibv_reg_mr(3), ibv_post_send(3)",
    /// A region has been deregistered while a request that the device has not executed names it.
    RegionInUse "region deregistered before its request" "ibv_post_send(3), ibv_post_recv(3)",
    /// An address handle has been destroyed before the completion of its request has been polled.
    AhInUse "address handle destroyed before its request" "ibv_post_send(3): \"The user should not alter or destroy AHs \
        associated with WRs until request is fully executed\"",
    /// Events of a destroyed object are not acknowledged: the call would block for ever.
    EventsNotAcknowledged "events not acknowledged" "ibv_destroy_cq(3), ibv_get_cq_event(3)",
    /// More events have been acknowledged than received.
    TooManyAcknowledged "too many events acknowledged" "ibv_ack_cq_events(3)",
    /// Inline data exceed the maximum that the creation of the queue pair returned.
    InlineTooLong "inline data above the returned maximum" "ibv_create_qp(3): max_inline_data",
    /// A flag of a request is not one of its opcode or transport.
    FlagOfOtherOpcode "flag that the request's opcode or transport does not have" "ibv_post_send(3): send_flags",
    /// Memory is registered with a right of peers to write, without the local right to write.
    RightsWithoutLocalWrite "rights of peers without IBV_ACCESS_LOCAL_WRITE" "ibv_reg_mr(3): \"If IBV_ACCESS_REMOTE_WRITE \
        or IBV_ACCESS_REMOTE_ATOMIC is set, then IBV_ACCESS_LOCAL_WRITE must be set too\"",
    /// The queue pairs of a connection have different packet sequence numbers, so that no packet is accepted.
    PsnMismatch "sq_psn unlike the peer's rq_psn" "ibv_modify_qp(3): sq_psn, rq_psn",
    /// A message has failed since no receive was posted at the peer until all RNR retries were used.
    NoReceive "no receive posted for a message" "ibv_modify_qp(3): rnr_retry, min_rnr_timer; ibv_post_recv(3)",
    /// A peer has refused a read or an atomic, with more of them in flight than its queue pair accepts.
    ReadDepth "more reads in flight than the peer accepts" "ibv_modify_qp(3): max_rd_atomic, max_dest_rd_atomic",
    /// The destruction of an object has failed since other objects use it, and has not been repeated until the end.
    DestroyedInUse "object destroyed before those that use it" "ibv_dealloc_pd(3), ibv_destroy_cq(3), ibv_destroy_srq(3), \
        ibv_destroy_comp_channel(3), ibv_destroy_qp(3), ibv_dereg_mr(3): the call fails while other objects use the object",
    /// An object is used by two threads at once, though made for one, by a call within a critical region of the same thread,
    /// or by a call during its destruction.
    OverlappingUse "overlapping use of an object" "ibv_create_cq_ex(3): IBV_CREATE_CQ_ATTR_SINGLE_THREADED; ibv_wr_post(3): \
        CONCURRENCY; ibv_destroy_qp(3), ibv_destroy_cq(3)",
    /// A child made by `fork` uses an object that its parent has opened or created.
    UsedAfterFork "object of the parent used in a child" "ibv_fork_init(3): a device is of the process that has opened it",
}

/// A place in the program: a function, with file and line where there is debug information.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Location {
    /// Name of the function; for a function without a symbol, the file and the offset in it.
    pub function: String,
    /// Source file and line, if known.
    pub line: Option<(String, u32)>,
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.function)?;
        match &self.line {
            Some((file, line)) => write!(f, " ({file}:{line})"),
            None => Ok(()),
        }
    }
}

/// A fault of the program, found by a fabric with [checks](crate::Fabric::checked).
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct CheckReport {
    /// The kind of fault.
    pub check: Check,
    /// The fault in one sentence, with values.
    pub sentence: String,
    /// The call that posted the request, or made the object.
    pub origin: Option<Location>,
    /// The call in conflict with it, in which the fault was found. `None` in a thread of the device.
    pub found_in: Option<Location>,
    /// Seed of the fabric.
    pub seed: u64,
}

impl fmt::Display for CheckReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "softnic: {}", self.check.title())?;
        writeln!(f, "  {}", self.sentence)?;
        if let Some(origin) = &self.origin {
            writeln!(f, "  posted or made by {origin}")?;
        }
        match &self.found_in {
            Some(found_in) => writeln!(f, "  found in a call by {found_in}")?,
            None => writeln!(f, "  found in a thread of the device")?,
        }
        writeln!(f, "  rule: {}", self.check.source())?;
        write!(f, "  repeat with SOFTNIC_SEED={}", self.seed)
    }
}
