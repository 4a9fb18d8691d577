//! Failed requests explained by the attributes of their queue pair.

use std::{fmt, time::Duration};

use super::{
    pair::QueuePair,
    query::QpAttr,
    queues::{ReceiveQueue, SendQueue},
    state::State,
    transport::Transport,
};
use crate::{
    WcStatus, access::RemoteAccess, addr::Gid, bounded::QpNum, cq::WcError, mr::RemoteToken,
};

/// A failed request, with the attributes of its queue pair: the peer, the path, the duration of the
/// retries, the rights. The text has a line for each.
///
/// # Examples
/// ```
/// # let (peer, mut qp, mut cq) = doctest::connected();
/// # let token = peer.token();
/// use verbs::{RemoteToken, op};
///
/// let wrong = RemoteToken { rkey: !token.rkey, ..token };
/// qp.post(op::Write::new(qp.pd().register_buf(*b"hello")?, wrong))?;
/// for wc in cq.wait(None)? {
///     if let Err(failed) = wc.ok() {
///         let text = qp.explain(&failed).accessing(wrong).to_string();
///         eprintln!("{text}");
/// #       assert!(text.contains("GID ::ffff:10.9.0.1"), "{text}");
///     }
/// }
/// # Ok::<(), verbs::Error>(())
/// ```
/// prints, for example
/// ```text
/// REM_ACCESS_ERR: the peer refused access: wrong RKey, address, length or rights; check first …
///   queue pair 0x000012 in the state ERR, port 1, GID index 0
///   peer: GID ::ffff:10.9.0.1, queue pair 0x000011
///   the request names 4096 bytes at 0x7f52a4001000, with RKey 0xfffffe00
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Explanation {
    /// The failure, with the peer and the retries where the retries are exhausted.
    pub failed: WcError,
    /// The local queue pair.
    pub qp_num: QpNum,
    /// The attributes of the local queue pair; `None` if the device refuses the query, for example
    /// after a removal.
    pub attributes: Option<QpAttr>,
    /// The memory named by the request, if the program has [added](Self::accessing) it.
    pub remote: Option<RemoteToken>,
}

impl Explanation {
    fn new(mut failed: WcError, qp_num: QpNum, attributes: Option<QpAttr>) -> Self {
        if let Some(attributes) = &attributes
            && failed.status.is_end_of_retries()
            && failed.attempts.is_none()
        {
            failed = failed.with_attempts(attributes.attempts());
        }
        Self {
            failed,
            qp_num,
            attributes,
            remote: None,
        }
    }

    /// Adds the memory of the peer that the request names. No completion has the memory, and the
    /// peer's device does not report which of address, length, RKey and rights is wrong.
    #[must_use]
    pub fn accessing(mut self, remote: RemoteToken) -> Self {
        self.remote = Some(remote);
        self
    }

    /// The address of the peer's port; `None` for datagrams, for a path without a global route, and
    /// before the transition to RTR.
    pub fn peer_gid(&self) -> Option<Gid> {
        let route = self.attributes?.path.grh?;
        Some(route.dgid).filter(|gid| !gid.is_unspecified())
    }

    /// Minimum time from the first transmission to [`RETRY_EXC_ERR`](WcStatus::RETRY_EXC_ERR): the
    /// timeout of a transmission times the number of transmissions. A device may take up to four
    /// times as long. `None` if the timeout is unlimited, or the status another one.
    pub fn min_retry_time(&self) -> Option<Duration> {
        let attempts = self.failed.attempts?;
        if self.failed.status != WcStatus::RETRY_EXC_ERR {
            return None;
        }
        attempts
            .ack_timeout?
            .checked_mul(u32::from(attempts.retry_count) + 1)
    }

    fn write_local(&self, attr: &QpAttr, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "\n  queue pair {} in the state {:?}, port {}",
            self.qp_num, attr.state, attr.port_num
        )?;
        match attr.path.grh {
            Some(route) => write!(f, ", GID index {}", route.sgid_index),
            None => Ok(()),
        }
    }

    fn write_peer(&self, attr: &QpAttr, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.peer_gid() {
            Some(gid) => write!(f, "\n  peer: GID {gid}, queue pair {}", attr.dest_qp_num),
            None if attr.path.dlid != 0 => write!(
                f,
                "\n  peer: LID {:#06x}, queue pair {}",
                attr.path.dlid, attr.dest_qp_num
            ),
            None => Ok(()),
        }
    }

    /// The line that depends on the status.
    fn write_cause(&self, attr: &QpAttr, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.failed.status {
            WcStatus::RETRY_EXC_ERR => match self.min_retry_time() {
                Some(time) => write!(
                    f,
                    "\n  given up after at least {time:.1?}: {} transmissions without an acknowledgement",
                    u32::from(attr.retry_count) + 1
                ),
                None => Ok(()),
            },
            WcStatus::RNR_RETRY_EXC_ERR => f.write_str(
                "\n  the interval of the retries is the min_rnr_timer of the peer's queue pair",
            ),
            WcStatus::LOC_ACCESS_ERR | WcStatus::REM_INV_REQ_ERR => {
                let rights = Rights(attr.access);
                write!(f, "\n  this queue pair allows the peer {rights}")?;
                write_depths(attr, f)
            }
            WcStatus::LOC_QP_OP_ERR => write_depths(attr, f),
            _ => Ok(()),
        }
    }
}

/// The depths in force, and which of the two sides has to change a depth of 0.
fn write_depths(attr: &QpAttr, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let (initiator, peer) = (attr.max_rd_atomic, attr.max_dest_rd_atomic);
    write!(
        f,
        "\n  reads and atomics at once: {initiator} of this side (max_rd_atomic), {peer} of the peer (max_dest_rd_atomic)"
    )?;
    if initiator == 0 {
        f.write_str(
            "; to read, set this side's initiator_depth and the peer's responder_resources",
        )?;
    }
    Ok(())
}

/// The rights of a peer, in words.
struct Rights(RemoteAccess);

impl fmt::Display for Rights {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = [
            (RemoteAccess::READ, "reads"),
            (RemoteAccess::WRITE, "writes"),
            (RemoteAccess::ATOMIC, "atomics"),
        ];
        let allowed = names.iter().filter(|(right, _)| self.0.contains(*right));
        let allowed: Vec<_> = allowed.map(|(_, name)| *name).collect();
        match allowed[..] {
            [] => f.write_str("no RDMA, only messages"),
            _ => f.write_str(&allowed.join(", ")),
        }
    }
}

impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.failed)?;
        match &self.attributes {
            Some(attr) => {
                self.write_local(attr, f)?;
                self.write_peer(attr, f)?;
                self.write_cause(attr, f)?;
            }
            None => write!(
                f,
                "\n  queue pair {}, whose attributes the device does not return any more",
                self.qp_num
            )?,
        }
        match self.remote {
            Some(RemoteToken { addr, len, rkey }) => write!(
                f,
                "\n  the request names {len} bytes at {addr:#x}, with RKey {rkey:#x}"
            ),
            None => Ok(()),
        }
    }
}

impl<T: Transport, S: State, SW, RW> QueuePair<T, S, SW, RW> {
    /// Explains a failed request by the attributes of this queue pair: the peer's GID and queue pair
    /// number, the minimum time of the retries, the rights. Enters the kernel for a query.
    ///
    /// The failure has to be of this queue pair: [`WcError`] itself names none.
    pub fn explain(&self, failed: &WcError) -> Explanation {
        Explanation::new(*failed, self.qp_num(), self.query().ok())
    }
}

macro_rules! halves {
    ($($half:ident)*) => {$(
        impl<T: Transport, SW, RW> $half<T, SW, RW> {
            /// Explains a failed request; see [`QueuePair::explain`].
            pub fn explain(&self, failed: &WcError) -> Explanation {
                Explanation::new(*failed, self.inner.qp_num(), self.query().ok())
            }
        }
    )*};
}

halves! { SendQueue ReceiveQueue }

#[cfg(test)]
mod tests {
    use ibverbs_sys as ffi;

    use super::*;

    /// Attributes of a failed queue pair, connected to queue pair 0x11 of 10.9.0.1.
    fn attributes(access: RemoteAccess) -> QpAttr {
        let mut attr = ffi::ibv_qp_attr::zeroed();
        let path = crate::ah::AddressVector::global(
            1,
            3,
            Gid::from(std::net::IpAddr::from([10, 9, 0, 1])),
        );
        attr.qp_state = ffi::ibv_qp_state::IBV_QPS_ERR;
        attr.ah_attr = path.to_raw();
        attr.port_num = 1;
        attr.dest_qp_num = 0x11;
        attr.timeout = 14;
        attr.retry_cnt = 7;
        attr.max_rd_atomic = 4;
        attr.max_dest_rd_atomic = 2;
        attr.qp_access_flags = access.rights();
        QpAttr::new(&attr, &ffi::ibv_qp_init_attr::zeroed())
    }

    fn explained(status: WcStatus, access: RemoteAccess) -> Explanation {
        let failed = WcError::new(status, 0);
        Explanation::new(failed, QpNum::from_low_bits(0x12), Some(attributes(access)))
    }

    /// Each case is a status, the rights of the peer, and the lines after the first two.
    #[test]
    fn explanation_of_each_status_has_its_line() {
        let time = "given up after at least 536.9ms: 8 transmissions without an acknowledgement";
        let depths = "reads and atomics at once: 4 of this side (max_rd_atomic), 2 of the peer (max_dest_rd_atomic)";
        let all = RemoteAccess::READ | RemoteAccess::WRITE | RemoteAccess::ATOMIC;
        let table: &[(WcStatus, RemoteAccess, &[&str])] = &[
            (WcStatus::RETRY_EXC_ERR, all, &[time]),
            (
                WcStatus::RNR_RETRY_EXC_ERR,
                all,
                &["the interval of the retries is the min_rnr_timer of the peer's queue pair"],
            ),
            (
                WcStatus::LOC_ACCESS_ERR,
                RemoteAccess::empty(),
                &[
                    "this queue pair allows the peer no RDMA, only messages",
                    depths,
                ],
            ),
            (
                WcStatus::REM_INV_REQ_ERR,
                all,
                &[
                    "this queue pair allows the peer reads, writes, atomics",
                    depths,
                ],
            ),
            (WcStatus::LOC_QP_OP_ERR, all, &[depths]),
            (WcStatus::REM_ACCESS_ERR, all, &[]),
            (WcStatus::WR_FLUSH_ERR, all, &[]),
        ];
        for (status, access, expected) in table {
            let text = explained(*status, *access).to_string();
            let lines: Vec<_> = text.lines().skip(1).map(str::trim).collect();
            assert_eq!(
                lines[..2],
                [
                    "queue pair 0x000012 in the state ERR, port 1, GID index 3",
                    "peer: GID ::ffff:10.9.0.1, queue pair 0x000011",
                ],
                "{text}"
            );
            assert_eq!(lines[2..], **expected, "{text}");
        }
    }

    #[test]
    fn explanation_of_a_depth_of_zero_names_the_remedy() {
        let mut attr = attributes(RemoteAccess::READ);
        attr.max_rd_atomic = 0;
        let failed = WcError::new(WcStatus::LOC_QP_OP_ERR, 0);
        let text = Explanation::new(failed, QpNum::from_low_bits(0x12), Some(attr)).to_string();
        let remedy = "to read, set this side's initiator_depth and the peer's responder_resources";
        assert!(text.ends_with(remedy), "{text}");
    }

    #[test]
    fn retry_time_is_the_timeout_of_all_transmissions() {
        let explained = explained(WcStatus::RETRY_EXC_ERR, RemoteAccess::empty());
        assert_eq!(
            explained.min_retry_time(),
            Some(8 * Duration::from_nanos(67_108_864))
        );
        let mut attr = attributes(RemoteAccess::empty());
        attr.timeout = 0; // unlimited
        let unlimited = Explanation::new(explained.failed, explained.qp_num, Some(attr));
        // The retries known to the failure stay.
        assert_eq!(unlimited.min_retry_time(), explained.min_retry_time());
        let failed = WcError::new(WcStatus::RETRY_EXC_ERR, 0);
        let unlimited = Explanation::new(failed, explained.qp_num, Some(attr));
        assert_eq!(unlimited.min_retry_time(), None);
        assert!(!unlimited.to_string().contains("given up"), "{unlimited}");
    }

    #[test]
    fn explanation_without_attributes_names_queue_pair_and_memory() {
        let failed = WcError::new(WcStatus::REM_ACCESS_ERR, 0);
        let token = RemoteToken {
            addr: 0x1000,
            len: 64,
            rkey: 0x2a,
        };
        let text = Explanation::new(failed, QpNum::from_low_bits(0x12), None).accessing(token);
        let text = text.to_string();
        assert!(
            text.contains("\n  queue pair 0x000012, whose attributes"),
            "{text}"
        );
        assert!(
            text.ends_with("\n  the request names 64 bytes at 0x1000, with RKey 0x2a"),
            "{text}"
        );
    }
}
