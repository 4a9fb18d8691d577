//! One member of the group: a joined identifier and a queue pair.

#![expect(clippy::print_stdout, reason = "of a program for the terminal")]

use std::os::fd::AsFd;

use anyhow::{Context as _, bail};
use cm::{Addr, CmId, Destination, EventChannel, Key, Membership, MulticastGroup, phases::IdPhase};
use verbs::{
    Buf, Completed, CompletionQueue, ProtectionDomain, QueuePair, Rts, SharedBuf, Ud,
    ah::{Addressed, GRH_LEN},
    fd::wait_any_readable,
    qp::QpFlags,
};

use examples::cm_tool::datagrams::prepare;

use crate::{Options, exchange};

/// A member before or after joining.
pub(crate) struct Member<P: IdPhase> {
    // Dropped before the identifier.
    qp: QueuePair<Ud, Rts, Addressed<SharedBuf>, Buf>,
    id: CmId<P>,
    cq: CompletionQueue,
    pd: ProtectionDomain,
    message: SharedBuf,
    joined: Option<(MulticastGroup, Destination)>,
    received: u32,
}

impl<P: IdPhase> Member<P> {
    /// Creates the queue pair with all receives posted, and joins the group. The identifier has a device.
    ///
    /// # Errors
    /// The device does not support multicast, or the message size is above the MTU.
    pub(crate) fn new(mut id: CmId<P>, group: Addr, options: &Options) -> anyhow::Result<Self> {
        let (count, size) = (options.messages(), options.message_size);
        let ctx = id.bound_context()?;
        let ctx = ctx.context("the address is of no device")?;
        let port = id.bound_port_num().context("the address is of no port")?;
        let (pd, cq) = prepare("mckey", (&ctx, port), count, size)?;
        let mut qp = pd.qp_builder::<Ud>(&cq, &cq).max_send_wr(count.max(1));
        if options.no_loopback {
            qp = qp.flags(QpFlags::BLOCK_SELF_MULTICAST);
        }
        let qp = qp.max_recv_wr(count.max(1)).create_for();
        let qp = qp.and_then(|qp| id.ready_datagram_qp(qp));
        let mut qp = qp.context("mckey: unable to create QP")?;
        if !options.sender {
            for _ in 0..count {
                qp.post_recv(pd.alloc_buf(GRH_LEN + size as usize)?)?;
            }
        }
        let membership = match options.send_only {
            true => Membership::SendOnly,
            false => Membership::Full,
        };
        id.join_multicast(group, membership)
            .context("mckey: failure joining")?;
        Ok(Self {
            message: pd.alloc_buf(size.max(1) as usize)?.freeze(),
            qp,
            id,
            cq,
            pd,
            joined: None,
            received: 0,
        })
    }

    /// Key of the identifier.
    pub(crate) fn key(&self) -> Key {
        self.id.key()
    }

    /// Whether the join has completed.
    pub(crate) fn is_joined(&self) -> bool {
        self.joined.is_some()
    }

    /// Records the membership, and enables receiving unless the member only sends.
    ///
    /// # Errors
    /// The device has failed.
    pub(crate) fn join(&mut self, group: MulticastGroup, options: &Options) -> anyhow::Result<()> {
        let address_vector = group.vector;
        let dgid = address_vector.grh.map(|grh| grh.dgid).unwrap_or_default();
        println!(
            "mckey: joined dgid: {dgid} mlid 0x{:x} sl {}",
            address_vector.dlid, address_vector.sl
        );
        if !options.send_only {
            group.attach(&mut self.qp)?;
        }
        let destination = group.destination(&self.pd);
        let destination = destination.context("mckey: failure creating address handle")?;
        self.joined = Some((group, destination));
        Ok(())
    }

    /// Sends all messages, with this queue pair's number as immediate data, and waits for the completions.
    ///
    /// # Errors
    /// The device has failed.
    pub(crate) fn send_all(&mut self, options: &Options) -> anyhow::Result<()> {
        let (_, group) = self.joined.as_ref().context("not a member")?;
        for _ in 0..options.messages() {
            let datagram = group.send(self.message.clone());
            let datagram = datagram.imm_data(self.qp.qp_num().get());
            self.qp.post(datagram).context("failed to post sends")?;
        }
        while self.qp.send_queue().in_flight() > 0 {
            for wc in self.cq.wait(None)? {
                wc.ok()?;
                if self.qp.complete(wc).is_err() {
                    bail!("a completion of nothing");
                }
            }
        }
        Ok(())
    }

    /// Blocks until the expected number of messages has arrived; reports events meanwhile.
    ///
    /// # Errors
    /// The device has failed, or has been removed.
    pub(crate) fn receive_all(
        &mut self,
        channel: &EventChannel,
        options: &Options,
    ) -> anyhow::Result<()> {
        while self.received < options.messages() {
            if let Some(completions) = self.cq.poll_or_arm()? {
                for wc in completions {
                    wc.ok()?;
                    if let Ok(Completed::Receive(_)) = self.qp.complete(wc) {
                        self.received += 1;
                    }
                }
                continue;
            }
            while let Some(event) = channel.try_next()? {
                exchange::report_event(&event)?;
            }
            let local = self.cq.notify_fd().context("the queue is not waitable")?;
            wait_any_readable("mckey", [local, channel.as_fd()], None)?;
        }
        Ok(())
    }

    /// Leaves the group.
    ///
    /// # Errors
    /// The identifier is not a member.
    pub(crate) fn leave(&mut self, options: &Options) -> anyhow::Result<()> {
        let (group, _) = self.joined.take().context("not a member")?;
        if !options.send_only {
            group.detach(&mut self.qp)?;
        }
        let remaining = self.id.leave_multicast(group.addr);
        remaining.context("mckey: failure leaving")
    }
}
