//! Endpoints for datagrams.

use std::{
    io,
    net::{SocketAddr, ToSocketAddrs},
    time::Duration,
};

use verbs::{
    Buf, Completed, CompletionQueue, Error, ProtectionDomain, QueuePair, RemoteAccess,
    RemoteRegion, Result, Rts, Ud,
    ah::Addressed,
    error::PostError,
    fd::wait_any_readable,
    op::SendRequest,
    qp::Completion,
    work::{Gather, Scatter},
};

use super::{
    PrivateQueues, Queues, builder::EndpointBuilder, each_addr, ending::ended, notify_fd,
    receiving, registration, unmatched_completion,
};
use crate::{
    channel::EventChannel,
    datagram::Destination,
    dial::{self, Deadline, LocalEnd, Thread, block},
    event::{ConnectFailure, Event},
    id::CmId,
    multicast::{Membership, MulticastGroup},
    param::Limit,
    phases::{AddrResolved, Listening},
    port_space::PortSpace,
};

/// A datagram queue pair with completion queues and an event channel of its own, similar to
/// [`UdpSocket`](std::net::UdpSocket).
///
/// Address requests of peers are answered only during blocking calls.
///
/// # Examples
/// ```no_run
/// use verbs::ah::GRH_LEN;
/// let mut endpoint = cm::DatagramEndpoint::bind("10.9.0.1:0")?;
/// endpoint.post_recv(endpoint.reg_msgs([0; GRH_LEN + 64])?)?;
/// let peer = endpoint.resolve("10.9.0.2:7174", b"")?;
/// endpoint.post_ud_send(endpoint.reg_msgs(*b"hello")?, &peer)?;
/// println!("received {:?}", &endpoint.recv_comp()?.received()?[GRH_LEN..]);
/// # Ok::<(), verbs::Error>(())
/// ```
#[derive(Debug)]
pub struct DatagramEndpoint<SW = Addressed<Buf>, RW = Buf> {
    qp: QueuePair<Ud, Rts, SW, RW>,
    queues: Queues<PrivateQueues>,
    service: Service,
    choices: EndpointBuilder,
}

/// Listener for address requests, and the joined groups.
#[derive(Debug)]
struct Service {
    listener: CmId<Listening>,
    groups: Vec<Group>,
    channel: EventChannel,
    private_data: Vec<u8>,
    /// Cause of the end, once the device has been removed.
    end: Option<ConnectFailure>,
}

#[derive(Debug)]
struct Group {
    id: CmId<AddrResolved>,
    group: MulticastGroup,
    membership: Membership,
}

impl DatagramEndpoint {
    /// Creates an endpoint on a local address, with the defaults of [`EndpointBuilder`].
    ///
    /// # Errors
    /// As for [`EndpointBuilder::bind`].
    pub fn bind(addr: impl ToSocketAddrs) -> Result<Self> {
        EndpointBuilder::new().bind(addr)
    }
}

impl<SW: 'static, RW: 'static> DatagramEndpoint<SW, RW> {
    pub(super) fn new(choices: &EndpointBuilder, addr: SocketAddr) -> Result<Self> {
        let channel = choices.channel()?;
        let mut id = channel.create_id_in(PortSpace::Udp)?;
        id.bind(addr)?;
        let listener = id.listen(choices.backlog)?;
        let Some(ctx) = listener.bound_context()? else {
            let reason = "an unspecified address is of no device";
            let error = Error::refused("rdma_bind_addr", io::ErrorKind::InvalidInput, reason);
            return Err(error.detail(addr.to_string()));
        };
        let queues = Queues::new(&ctx, choices)?;
        let qp = listener.ready_datagram_qp(queues.create_qp(choices)?)?;
        Ok(Self {
            qp,
            queues,
            service: Service {
                listener,
                groups: Vec::new(),
                channel,
                private_data: Vec::new(),
                end: None,
            },
            choices: choices.clone(),
        })
    }

    registration!();
    receiving!(qp);

    /// Address for requests of peers.
    pub fn local_addr(&self) -> Option<SocketAddr> {
        self.service.listener.local_addr()
    }

    /// The queue pair.
    pub fn qp_mut(&mut self) -> &mut QueuePair<Ud, Rts, SW, RW> {
        &mut self.qp
    }

    /// Sets the timeout of each call; `None` for no limit.
    pub fn set_timeout(&mut self, timeout: Option<Duration>) {
        self.choices.timeout = timeout;
    }

    /// Sets the private data of answers to peers, up to 136 bytes; empty by default.
    ///
    /// # Errors
    /// - `InvalidInput`: more bytes than an answer has room for. The earlier data stays.
    pub fn set_private_data(&mut self, private_data: impl Into<Vec<u8>>) -> Result<()> {
        let private_data = private_data.into();
        Limit::of_datagram_reply().check("DatagramEndpoint::set_private_data", &private_data)?;
        self.service.private_data = private_data;
        Ok(())
    }

    /// This side of a route: the own address with another port.
    fn local_end(&self) -> LocalEnd {
        let mut source = self.local_addr();
        if let Some(source) = &mut source {
            source.set_port(0);
        }
        LocalEnd {
            space: PortSpace::Udp,
            source,
            tos: self.choices.tos,
        }
    }

    /// Resolves the datagram address of a peer, with up to 180 bytes of private data.
    ///
    /// # Errors
    /// As for [`EndpointBuilder::connect`].
    pub fn resolve(&self, addr: impl ToSocketAddrs, private_data: &[u8]) -> Result<Destination> {
        each_addr("rdma_connect", addr, |addr| {
            let channel = self.choices.channel()?;
            let thread = Thread {
                channel: &channel,
                deadline: Deadline::after(self.choices.timeout),
            };
            let end = self.local_end();
            let (_id, peer) = block(async {
                let id = dial::resolve(&thread, end, addr).await?;
                dial::resolve_service(&thread, id, private_data).await
            })?;
            peer.destination(&self.queues.pd)
        })
    }

    /// Joins a multicast group, and receives the group's datagrams as a full member. Drop leaves the group.
    ///
    /// # Errors
    /// - `TimedOut`: the timeout has elapsed.
    /// - The errors of [`join_multicast`](CmId::join_multicast).
    pub fn join(&mut self, group: SocketAddr, membership: Membership) -> Result<Destination> {
        let channel = self.choices.channel()?;
        let deadline = Deadline::after(self.choices.timeout);
        let end = self.local_end();
        let thread = Thread {
            channel: &channel,
            deadline,
        };
        let (mut id, group) = block(dial::join(&thread, end, group, membership))?;
        let destination = group.destination(&self.queues.pd)?;
        id.migrate(&self.service.channel)?;
        // Last: an identifier that is dropped leaves the group, and the queue pair would stay attached.
        if membership == Membership::Full {
            group.attach(&mut self.qp)?;
        }
        self.service.groups.push(Group {
            id,
            group,
            membership,
        });
        Ok(destination)
    }

    /// Leaves a multicast group.
    ///
    /// # Errors
    /// - `InvalidInput`: not a member of this group.
    #[doc(alias = "rdma_leave_multicast")]
    pub fn leave(&mut self, group: SocketAddr) -> Result<()> {
        let groups = &mut self.service.groups;
        let Some(found) = groups.iter().position(|of| of.group.addr == group.into()) else {
            let reason = format!("not a member of {group}");
            let call = "rdma_leave_multicast";
            return Err(Error::refused(call, io::ErrorKind::InvalidInput, reason));
        };
        // A group whose detachment fails stays joined.
        if groups[found].membership == Membership::Full {
            groups[found].group.detach(&mut self.qp)?;
        }
        groups.remove(found).id.leave_multicast(group)
    }

    /// Why the endpoint has ended: `None`, unless a blocking call has noticed the removal of the device. Requests in flight then
    /// complete with the status [`WR_FLUSH_ERR`](verbs::WcStatus::WR_FLUSH_ERR).
    pub fn end_cause(&self) -> Option<ConnectFailure> {
        self.service.end.clone()
    }

    /// Posts a datagram with any options.
    ///
    /// # Errors
    /// The request is returned in the error; see [`post`](QueuePair::post).
    pub fn post<R>(&mut self, request: R) -> Result<(), PostError<R>>
    where
        R: SendRequest<Ud, Work = SW>,
    {
        self.qp.post(request)
    }

    /// `rdma_get_send_comp`—Blocks until a datagram has been sent, and returns the payload. Delivery is not
    /// guaranteed.
    ///
    /// # Errors
    /// - `TimedOut`: no completion before the timeout.
    /// - `NotConnected`: the device has been removed, and nothing is in flight.
    /// - The errors of [`poll`](CompletionQueue::poll).
    #[doc(alias = "rdma_get_send_comp")]
    pub fn send_comp(&mut self) -> Result<Completion<'_, SW>> {
        const CALL: &str = "rdma_get_send_comp";
        let deadline = Deadline::after(self.choices.timeout);
        let queue = &mut self.queues.cqs.send;
        let in_flight = self.qp.send_queue().in_flight();
        self.service
            .wait(CALL, queue, &mut self.qp, in_flight, deadline)?;
        match self.queues.cqs.send.poll()?.next() {
            Some(wc) => match self.qp.complete(wc) {
                Ok(Completed::Send(completion)) => Ok(completion),
                _ => Err(unmatched_completion(CALL)),
            },
            None => Err(deadline.missed(CALL)),
        }
    }

    /// `rdma_get_recv_comp`—Blocks until a datagram has arrived, and returns the memory. The first
    /// [`GRH_LEN`](verbs::ah::GRH_LEN) bytes are the header.
    ///
    /// # Errors
    /// As for [`send_comp`](Self::send_comp).
    #[doc(alias = "rdma_get_recv_comp")]
    pub fn recv_comp(&mut self) -> Result<Completion<'_, RW>> {
        const CALL: &str = "rdma_get_recv_comp";
        let deadline = Deadline::after(self.choices.timeout);
        let queue = &mut self.queues.cqs.recv;
        let in_flight = self.qp.receive_queue().in_flight();
        self.service
            .wait(CALL, queue, &mut self.qp, in_flight, deadline)?;
        match self.queues.cqs.recv.poll()?.next() {
            Some(wc) => match self.qp.complete(wc) {
                Ok(Completed::Receive(completion)) => Ok(completion),
                _ => Err(unmatched_completion(CALL)),
            },
            None => Err(deadline.missed(CALL)),
        }
    }
}

impl<W: Gather + 'static, RW: 'static> DatagramEndpoint<Addressed<W>, RW> {
    /// `rdma_post_ud_send`—Sends a datagram.
    ///
    /// # Errors
    /// The payload is returned in the error; see [`post`](QueuePair::post).
    #[doc(alias = "rdma_post_ud_send")]
    pub fn post_ud_send(&mut self, work: W, to: &Destination) -> Result<(), PostError<W>> {
        let posted = self.post(to.send(work));
        posted.map_err(|refused| refused.map(|request| request.into_work().work))
    }
}

impl Service {
    /// Answers pending address requests.
    fn attend<SW, RW>(&mut self, qp: &mut QueuePair<Ud, Rts, SW, RW>) -> Result<()> {
        while let Some(event) = self.channel.try_next()? {
            match event {
                Event::ServiceRequest(request) => match request.accept(qp, &self.private_data) {
                    // The peer has the answer, so the identifier is no longer needed.
                    Ok(answered) => drop(answered),
                    // The kernel refuses the answer to a stale request. The peer repeats the request.
                    Err(err) if err.raw_os_error().is_some() => {}
                    Err(err) => return Err(err),
                },
                Event::DeviceRemoval(_) if self.end.is_none() => {
                    self.end = Some(ConnectFailure::DeviceRemoved);
                    qp.to_error()?;
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Blocks until a queue has completions; answers peers meanwhile.
    fn wait<SW, RW>(
        &mut self,
        call: &'static str,
        queue: &mut CompletionQueue,
        qp: &mut QueuePair<Ud, Rts, SW, RW>,
        in_flight: usize,
        deadline: Deadline,
    ) -> Result<()> {
        while queue.poll_or_arm()?.is_none() {
            if let Some(cause) = self.end.as_ref().filter(|_| in_flight == 0) {
                return Err(ended(call, Some(cause)));
            }
            let fds = [notify_fd(call, queue)?, self.channel.handle().event_fd()];
            let readable = wait_any_readable(call, fds, deadline.remaining())?;
            if let [_, true] = readable {
                self.attend(qp)?;
            }
            if readable == [false; 2] {
                // Poll once more: event and completion may have arrived at the same time.
                return match queue.poll_or_arm()? {
                    Some(_) => Ok(()),
                    None => Err(deadline.missed(call)),
                };
            }
        }
        Ok(())
    }
}
