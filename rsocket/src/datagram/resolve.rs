//! Route resolution to a peer with a known queue pair number.

use std::{io, net::SocketAddr, sync::Weak, time::Duration};

use cm::{
    CmId, PathRecord, PortSpace,
    phases::{AddrResolved, HasDevice, RouteResolved},
};
use rustix::io::Errno;
use verbs::{
    Context, Gid,
    ah::{AddressVector, GlobalRoute},
    attr::{GidType, LinkLayer},
};

use super::{DatagramSocket, local::PeerPath};
use crate::engine::Engine;

/// Timeout of each resolution step.
const STEP_TIMEOUT: Duration = Duration::from_secs(2);

/// Default hop limit.
const HOP_LIMIT: u8 = 64;

/// Starts resolving the route from a local address. The engine notifies the socket of the result.
pub(super) fn start(
    engine: &Engine,
    socket: Weak<DatagramSocket>,
    mut local: SocketAddr,
    peer: SocketAddr,
    tos: Option<u8>,
) -> io::Result<()> {
    local.set_port(0);
    let mut id = engine.channel().create_id_in(PortSpace::Udp)?;
    if let Some(tos) = tos {
        id.set_tos(tos)?;
    }
    let key = id.key();
    engine.resolving_peer(key, socket, peer);
    id.resolve_addr(Some(local), peer, STEP_TIMEOUT)
        .map_err(|refused| {
            engine.forget(key);
            refused.error.into()
        })
}

/// Starts the second step, the route resolution.
pub(crate) fn resolve_route(id: CmId<AddrResolved>) -> io::Result<()> {
    id.resolve_route(STEP_TIMEOUT)
        .map_err(|refused| refused.error.into())
}

/// Returns the path of a resolved route, with a new address handle.
pub(crate) fn peer_path(engine: &Engine, id: &CmId<RouteResolved>) -> io::Result<PeerPath> {
    let ctx = id.context()?;
    let port = ctx.query_port(id.port_num())?;
    let path = id.paths().into_iter().next().unwrap_or_default();
    let mut vector = AddressVector::local(id.port_num(), path.dlid);
    vector.sl = path.sl;
    vector.static_rate = path.rate_code;
    // The path bits are those within the port's LMC.
    let bits = (1_u16 << port.lmc().min(7)) - 1;
    vector.src_path_bits = (path.slid & bits).to_be_bytes()[1];
    // On Ethernet, only the global route identifies the peer.
    let is_ethernet = port.link_layer() == LinkLayer::ETHERNET;
    if is_ethernet || port.is_grh_required() || path.hop_limit > 1 {
        vector.grh = Some(global_route(&ctx, id, &path)?);
    }
    let mtu = [path.mtu().bytes(), port.active_mtu().bytes()];
    let mtu = mtu.into_iter().flatten().min().unwrap_or(256);
    Ok(PeerPath {
        ah: engine.devices().of(&ctx)?.datagrams.create_ah(&vector)?,
        mtu: mtu as usize,
    })
}

fn global_route<P: HasDevice>(
    ctx: &Context,
    id: &CmId<P>,
    path: &PathRecord,
) -> io::Result<GlobalRoute> {
    let or = |gid: Gid, other| if gid.is_unspecified() { other } else { gid };
    let sgid = or(path.sgid, id.local_gid());
    let port_num = u32::from(id.port_num());
    let table = ctx.query_gid_table()?;
    let mut candidates = table
        .iter()
        .filter(|entry| entry.gid == sgid && entry.port_num == port_num)
        .peekable();
    let first = candidates.peek().copied();
    // The table may have an entry for each RoCE version. The connection manager also prefers version 2.
    let entry = candidates
        .find(|entry| entry.gid_type == GidType::ROCE_V2)
        .or(first)
        .ok_or(Errno::ADDRNOTAVAIL)?;
    Ok(GlobalRoute {
        dgid: or(path.dgid, id.peer_gid()),
        sgid_index: u8::try_from(entry.gid_index).map_err(|_| Errno::ADDRNOTAVAIL)?,
        flow_label: path.flow_label & 0x000f_ffff,
        hop_limit: path
            .hop_limit
            .max(if path.hop_limit == 0 { HOP_LIMIT } else { 1 }),
        traffic_class: path.traffic_class,
    })
}
