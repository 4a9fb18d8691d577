//! The connection and the resources.

use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr},
    time::Duration,
};

use cm::{CmId, ConnParam, Connection, Event, EventChannel, phases::HasDevice};
use verbs::{
    Buf, CompletionQueue, Init, ProtectionDomain, QueuePair, RemoteAccess, RemoteRegion,
    RemoteToken, work::Gather,
};

use crate::{Plan, Result, TX_DEPTH};

const PORT: u16 = 18515;
const TIMEOUT: Duration = Duration::from_secs(5);

/// Role of this side.
#[derive(Clone, Copy)]
pub(crate) enum Role {
    Server,
    Client(IpAddr),
}

/// An established connection with send queue payloads of type `SW`.
pub(crate) struct TestLink<SW> {
    // Dropped first: the connection uses the queues.
    pub(crate) connection: Connection<SW, Buf>,
    pub(crate) send_cq: CompletionQueue,
    pub(crate) recv_cq: CompletionQueue,
    pub(crate) pd: ProtectionDomain,
    /// Memory accessible by the peer.
    pub(crate) region: RemoteRegion,
    /// Memory of the peer accessible by this side.
    pub(crate) peer: RemoteToken,
    _channel: EventChannel,
}

/// All resources except the connection.
struct Parts {
    send_cq: CompletionQueue,
    recv_cq: CompletionQueue,
    pd: ProtectionDomain,
    region: RemoteRegion,
}

impl<SW: Gather + 'static> TestLink<SW> {
    /// Connects, with `plan.rx_depth` receives posted.
    pub(crate) fn establish(plan: Plan, role: Role) -> Result<Self> {
        let channel = EventChannel::new()?;
        let (parts, connection, peer) = match role {
            Role::Server => accept(plan, &channel)?,
            Role::Client(server) => connect(plan, &channel, SocketAddr::new(server, PORT))?,
        };
        let Parts {
            send_cq,
            recv_cq,
            pd,
            region,
        } = parts;
        Ok(Self {
            connection,
            send_cq,
            recv_cq,
            pd,
            region,
            peer,
            _channel: channel,
        })
    }
}

type Established<SW> = (Parts, Connection<SW, Buf>, RemoteToken);

fn accept<SW: Gather + 'static>(plan: Plan, channel: &EventChannel) -> Result<Established<SW>> {
    let mut id = channel.create_id()?;
    id.bind(SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), PORT))?;
    let _listener = id.listen(1)?;
    let Event::ConnectRequest(request) = channel.wait()? else {
        return Err("something other than a request for a connection came".into());
    };
    let peer = decode(&request.param().private_data)?;
    let (parts, qp) = Parts::new(plan, request.id())?;
    let qp = request.accept(qp, &parts.parameters())?;
    match channel.wait()? {
        Event::Established(id) => Ok((parts, Connection::new(id, qp)?, peer)),
        other => Err(format!("no connection: {other:?}").into()),
    }
}

fn connect<SW: Gather + 'static>(
    plan: Plan,
    channel: &EventChannel,
    server: SocketAddr,
) -> Result<Established<SW>> {
    channel.create_id()?.resolve_addr(None, server, TIMEOUT)?;
    let mut connected = None;
    loop {
        match channel.wait()? {
            Event::AddrResolved(id) => id.resolve_route(TIMEOUT)?,
            Event::RouteResolved(id) => {
                let (parts, qp) = Parts::new(plan, &id)?;
                id.connect(&qp, &parts.parameters())?;
                connected = Some((parts, qp));
            }
            Event::ConnectResponse(response) => {
                let (parts, qp) = connected.ok_or("nothing was connected")?;
                let peer = decode(&response.param().private_data)?;
                return Ok((parts, response.establish(qp)?, peer));
            }
            other => return Err(format!("no connection: {other:?}").into()),
        }
    }
}

impl Parts {
    fn new<SW: 'static, P: HasDevice>(
        plan: Plan,
        id: &CmId<P>,
    ) -> Result<(Self, QueuePair<verbs::Rc, Init, SW, Buf>)> {
        let ctx = id.context()?;
        let pd = ctx.alloc_pd()?;
        let send_cq = ctx.create_cq(TX_DEPTH)?;
        let rx_depth = u32::try_from(plan.rx_depth)?;
        let recv_cq = ctx.create_cq(rx_depth)?;
        let qp = pd
            .qp_builder(&send_cq, &recv_cq)
            .max_send_wr(TX_DEPTH)
            .max_recv_wr(rx_depth)
            .create_for()?;
        let mut qp = id.init_qp(qp)?;
        let mut rest = pd.alloc_buf(plan.size * plan.rx_depth)?;
        for _ in 0..plan.rx_depth {
            let next = rest.split_off(plan.size);
            qp.post_recv(rest)?;
            rest = next;
        }
        let region = pd.alloc_remote(plan.size, RemoteAccess::WRITE | RemoteAccess::READ)?;
        let parts = Self {
            send_cq,
            recv_cq,
            pd,
            region,
        };
        Ok((parts, qp))
    }

    fn parameters(&self) -> ConnParam {
        ConnParam::new().private_data(encode(self.region.token()))
    }
}

fn encode(token: RemoteToken) -> Vec<u8> {
    let RemoteToken { addr, len, rkey } = token;
    [
        &addr.to_be_bytes()[..],
        &len.to_be_bytes(),
        &rkey.to_be_bytes(),
    ]
    .concat()
}

fn decode(data: &[u8]) -> Result<RemoteToken> {
    let field = |start: usize| {
        let bytes = data.get(start..start + 8);
        let bytes = bytes.ok_or("the peer's private data is too short")?;
        Ok::<_, Box<dyn std::error::Error>>(u64::from_be_bytes(bytes.try_into()?))
    };
    let rkey = field(16)? >> 32;
    Ok(RemoteToken {
        addr: field(0)?,
        len: field(8)?,
        rkey: u32::try_from(rkey)?,
    })
}
