//! Rules of an adversarial device, by name.

use std::fmt;

use crate::by_name::parsed_by_name;

/// Ground on which a program that breaks by a rule is at fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RuleClass {
    /// A manual page or the specification forbids the program's use.
    Error,
    /// The program relies on behaviour of common machines that no document promises.
    Assumption,
}

impl fmt::Display for RuleClass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Error => "error",
            Self::Assumption => "assumption",
        })
    }
}

macro_rules! rules {
    ($($(#[doc = $doc:literal])* $variant:ident $name:literal $class:ident $source:literal,)*) => {
        /// Behaviour allowed to a device, and rare enough for programs to rely on its absence; for
        /// [`Fabric::rule`](crate::Fabric::rule).
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[non_exhaustive]
        pub enum Rule {
            $(
                $(#[doc = $doc])*
                ///
                #[doc = concat!("Name: `", $name, "`. Source: ", $source, ".")]
                $variant,
            )*
        }

        impl Rule {
            /// All rules.
            pub const ALL: &[Self] = &[$(Self::$variant,)*];

            /// Name of the rule, as in the environment variable `SOFTNIC_ADVERSARY`.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $name,)*
                }
            }

            /// Ground on which a program that breaks by the rule is at fault.
            pub const fn class(self) -> RuleClass {
                match self {
                    $(Self::$variant => RuleClass::$class,)*
                }
            }

            /// Manual page or other source of the rule.
            pub const fn source(self) -> &'static str {
                match self {
                    $(Self::$variant => $source,)*
                }
            }
        }
    };
}

rules! {
    /// Fields of a completion that the manual page leaves undefined have any value: the memory of the caller, zero, or
    /// another plausible value. On failure these are all but `wr_id`, `status`, `qp_num` and `vendor_err`; on success
    /// `byte_len` of sends and writes, `imm_data` without its flag, `src_qp` of other transports than UD, `vendor_err`.
    StaleFields "stale-fields" Error "ibv_poll_cq(3)",
    /// A slot of a send queue, a receive queue or a shared receive queue is free once the completion of its request, or of
    /// a later one, has been polled.
    SlotAtPoll "slot-at-poll" Error "ibv_post_send(3)",
    /// Completions become visible late and in bursts, with one event for all of them; an event may come without a
    /// completion.
    Coalesced "coalesced" Error "ibv_get_cq_event(3)",
    /// Receives complete before earlier send requests of the same queue pair, as a reply before its request.
    RecvBeforeSend "recv-before-send" Error "ibv_post_send(3)",
    /// The completions of flushed requests interleave those of the two queues, and `IBV_EVENT_QP_LAST_WQE_REACHED` comes
    /// before or after them.
    FlushOrder "flush-order" Assumption "ibv_get_async_event(3)",
    /// The completions of a destroyed queue pair that have not been polled vanish.
    DestroyedCqes "destroyed-cqes" Assumption "ibv_destroy_qp(3)",
    /// The remote key of a region is unlike the local key, and 0 without rights of peers.
    Keys "keys" Error "ibv_reg_mr(3)",
    /// The undefined bytes of the header before a datagram, 20 for IPv4, are garbage.
    Grh "grh" Error "ibv_post_recv(3)",
    /// Devices have queue pairs and keys of memory with equal numbers.
    Colliding "colliding" Error "ibv_create_qp(3), ibv_reg_mr(3)",
    /// The device reads the memory of a send request some time after the post.
    LateReads "late-reads" Error "ibv_post_send(3)",
    /// Reads and atomics are answered late: a later request without a fence overtakes them, here and at the peer. Requests of a
    /// reliable datagram queue pair overtake each other.
    /// Completions stay in order.
    Unfenced "unfenced" Error "ibv_post_send(3)",
    /// The memory of failed and flushed receives and reads has changed in part.
    Partial "partial" Error "ibv_post_recv(3)",
    /// The bytes of an RDMA write come in two steps, the end first, until the acknowledgement; those of a received message and
    /// of a read in two steps until the completion. `ibv_query_qp_data_in_order` answers 0.
    Placement "placement" Assumption "ibv_query_qp_data_in_order(3)",
    /// A write to a region with `IBV_ACCESS_RELAXED_ORDERING` comes after a later one, never after a send, an atomic or a
    /// completion.
    Relaxed "relaxed" Error "ibv_reg_mr(3): IBV_ACCESS_RELAXED_ORDERING",
    /// Received bytes and results of reads and atomics, up to 64 bytes, come with the poll of their completion, as with
    /// mlx5's provider.
    PollWrites "poll-writes" Error "ibv_post_recv(3), ibv_post_send(3)",
    /// The processor of the peer sees the bytes of a write after its completion here. `ibv_query_qp_data_in_order` answers 0.
    NotVisible "not-visible" Assumption "InfiniBand Architecture Specification, volume 1, 9.5",
    /// The device reports `IBV_ATOMIC_HCA`: its atomics are not atomic with the processor's, and short writes come in two
    /// steps.
    Torn "torn" Error "ibv_query_device(3): atomic_cap",
    /// The requests of a failed queue pair are flushed some time after the first error, and the device writes to their memory
    /// until then.
    LateAccess "late-access" Error "ibv_post_send(3), ibv_post_recv(3)",
    /// A request posted before its queue pair can send is accepted and dropped.
    EarlyPost "early-post" Error "ibv_post_send(3), ibv_modify_qp(3)",
    /// Messages come before `RDMA_CM_EVENT_ESTABLISHED`.
    EarlyData "early-data" Error "rdma_notify(3)",
    /// Numbers of queue pairs and keys of memory are issued again at once; not those of queue pairs of the connection manager,
    /// which are "maintained in a timewait state" (`rdma_get_cm_event(3)`).
    Reuse "reuse" Assumption "providers of rdma-core",
    /// A message takes one of the four oldest receives of a shared receive queue.
    Srq "srq" Assumption "ibv_post_srq_recv(3), which promises no order",
    /// `ibv_dereg_mr` succeeds for a region with a bound memory window: the window is unbound.
    BoundDereg "bound-dereg" Assumption "InfiniBand Architecture Specification, volume 1, 10.6.7.2.6",
    /// Posting functions return a negative error number, as the providers siw, erdma and cxgb4 do.
    ErrnoSign "errno-sign" Assumption "providers of rdma-core",
    /// Destroying functions take up to 2 ms.
    SlowTeardown "slow-teardown" Assumption "measured on cards",
    /// Calls that create an object fail now and then with `ENOMEM`, `EAGAIN` or `ENOSPC`. Not a rule of
    /// [`Fabric::adversarial`](crate::Fabric::adversarial).
    Refusal "refusal" Error "ibv_create_qp(3)",
    /// Registrations of no bytes fail with `EINVAL`, as with the drivers mlx5 and efa, and reads and writes of no bytes need a
    /// valid key. Not a rule of [`Fabric::adversarial`](crate::Fabric::adversarial).
    Zero "zero" Assumption "drivers of Linux",
    /// A list of requests fails in its middle with `ENOMEM`: the requests before `bad_wr` are posted. Not a rule of
    /// [`Fabric::adversarial`](crate::Fabric::adversarial).
    Batch "batch" Error "ibv_post_send(3)",
    /// A request fails although its effect has happened, as if its acknowledgement were lost. Not a rule of
    /// [`Fabric::adversarial`](crate::Fabric::adversarial).
    FailedButDone "failed-but-done" Error "ibv_poll_cq(3)",
    /// `ibv_poll_cq` fails now and then with a negative number, and its completions are lost. Not a rule of
    /// [`Fabric::adversarial`](crate::Fabric::adversarial).
    PollError "poll-error" Error "ibv_poll_cq(3)",
}

impl Rule {
    /// Whether calls or requests fail by the rule, so that a program without a way around a failure ends.
    pub const fn refuses_calls(self) -> bool {
        matches!(
            self,
            Self::Refusal | Self::Zero | Self::Batch | Self::FailedButDone | Self::PollError
        )
    }
}

parsed_by_name!(Rule, UnknownRule, "rule");
