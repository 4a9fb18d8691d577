//! Events: getting and acknowledging.

use std::{
    cell::UnsafeCell,
    ffi::{CStr, c_char, c_int},
    io, ptr,
    sync::Arc,
};

use rdmacm_sys as ffi;

use super::{
    channel::Channel,
    id::Id,
    qp::{self, Depths},
    queue::Queued,
};
use crate::{
    abi::{
        acks::Acks,
        attributes::address_vector,
        object::{Object, Plain, zeroed},
    },
    cm::{ConnParam, Ece, IdNum, Occurrence, PrivateData},
    engine::Path,
    fabric::Port,
    failure::Call,
};

use ffi::rdma_cm_event_type as Kind;

/// An event held by the program.
#[repr(C)]
struct Event {
    raw: UnsafeCell<ffi::rdma_cm_event>,
    private_data: PrivateData,
    acks: Arc<Acks>,
}

// SAFETY: `repr(C)`, and the C struct comes first.
unsafe impl Object for Event {
    type Raw = ffi::rdma_cm_event;
}

// SAFETY: integers, raw pointers, and structs and unions of them.
unsafe impl Plain for ffi::rdma_cm_event {}

/// Destination number of datagrams to a multicast group.
const MULTICAST_QP: u32 = 0xff_ffff;

/// Q_Key of multicast groups.
const GROUP_QKEY: u32 = 0x0123_4567;

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn rdma_get_cm_event(
    channel: *mut ffi::rdma_event_channel,
    out: *mut *mut ffi::rdma_cm_event,
) -> c_int {
    // SAFETY: a live channel.
    let channel = unsafe { Channel::borrow(channel) };
    let attempt = |port: &Port| port.attempt(Call::GetCmEvent);
    if let Some(Err(errno)) = channel.port.as_ref().map(attempt) {
        return super::failed(errno);
    }
    loop {
        // Expired timers may raise the awaited event.
        if let Some(port) = &channel.port {
            port.advance();
        }
        let Some(queued) = channel.queue.take(|event| event.acks.add()) else {
            if channel.queue.wait() {
                continue;
            }
            return -1;
        };
        let acks = Arc::clone(&queued.acks);
        // SAFETY: destroying the identifier waits for the acknowledgement of the event.
        if let Some(event) = unsafe { deliver(queued) } {
            // SAFETY: the caller's place.
            unsafe { *out = event };
            return 0;
        }
        acks.remove(1);
    }
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn rdma_ack_cm_event(raw: *mut ffi::rdma_cm_event) -> c_int {
    // SAFETY: a live event.
    let acks = Arc::clone(&unsafe { Event::borrow(raw) }.acks);
    // SAFETY: live until here; the caller gives the event up.
    unsafe { Event::free(raw) };
    // The identifier may be freed as soon as the event is acknowledged.
    acks.remove(1);
    0
}

/// Contents of an `rdma_cm_event`.
struct Contents {
    kind: Kind,
    status: c_int,
    param: Option<ConnParam>,
    datagram: Option<ffi::rdma_ud_param>,
    private_data: PrivateData,
    child: Option<IdNum>,
    ece: Option<Ece>,
}

impl Contents {
    fn new(kind: Kind, status: c_int) -> Self {
        Self {
            kind,
            status,
            param: None,
            datagram: None,
            private_data: PrivateData::EMPTY,
            child: None,
            ece: None,
        }
    }

    fn with_data(kind: Kind, status: c_int, private_data: PrivateData) -> Self {
        Self {
            private_data,
            ..Self::new(kind, status)
        }
    }
}

/// Makes the `rdma_cm_event`, and updates the identifier; `None` if the event is obsolete.
///
/// # Safety
/// - The identifier of the event is live until the event is acknowledged.
unsafe fn deliver(queued: Queued) -> Option<*mut ffi::rdma_cm_event> {
    let raw_id: *mut ffi::rdma_cm_id = ptr::with_exposed_provenance_mut(queued.addr);
    // SAFETY: live, as the caller promised.
    let id = unsafe { Id::borrow(raw_id) };
    let contents = contents(id, queued.what)?;
    let mut raw: ffi::rdma_cm_event = zeroed();
    raw.id = raw_id;
    if let Some(child) = contents.child {
        if !id.port().look(|nic| nic.manager.take_request(child)) {
            return None;
        }
        // SAFETY: live, as above; the field does not change while the listener has events.
        let channel = unsafe { (*raw_id).channel };
        // SAFETY: as above.
        let context = unsafe { (*raw_id).context };
        let queue = Arc::clone(&id.extra().queue);
        raw.listen_id = raw_id;
        raw.id = Id::create(&id.port(), child, &queue, (channel, context), false);
        // SAFETY: live, as above; the field does not change after the creation.
        let kind = unsafe { (*raw_id).qp_type };
        // SAFETY: live, and not yet known to the program.
        unsafe { (*raw.id).qp_type = kind };
    }
    // SAFETY: the listener's new identifier, or the live identifier of the event.
    let subject = unsafe { Id::borrow(raw.id) };
    // No event after the resolution changes the C struct, which other threads may read then.
    let is_route = matches!(contents.kind, Kind::RDMA_CM_EVENT_ROUTE_RESOLVED);
    let is_addr = matches!(
        contents.kind,
        Kind::RDMA_CM_EVENT_ADDR_RESOLVED | Kind::RDMA_CM_EVENT_ADDR_ERROR
    );
    if is_addr || is_route || contents.child.is_some() {
        subject.refresh();
    }
    if is_route || contents.child.is_some() {
        subject.refresh_path();
    }
    if let Some(ece) = contents.ece {
        subject.extra().remote_ece = ece;
    }
    raw.event = contents.kind;
    raw.status = contents.status;
    // SAFETY: the live identifier of the event.
    unsafe { drive_qp(&mut raw) };
    if let Some(joined) = contents
        .datagram
        .filter(|_| raw.event == Kind::RDMA_CM_EVENT_MULTICAST_JOIN)
    {
        let group = joined.ah_attr.grh.dgid;
        // SAFETY: the live identifier of the event.
        let errno = unsafe { qp::attach(raw.id, &group) };
        if errno != 0 {
            raw.event = Kind::RDMA_CM_EVENT_MULTICAST_ERROR;
            raw.status = -errno;
        }
    }
    let event = Event {
        raw: UnsafeCell::new(raw),
        private_data: contents.private_data,
        acks: queued.acks,
    };
    let event = event.into_raw();
    // SAFETY: a live event, and the data are part of the event.
    let data = unsafe { Event::borrow(event) }.private_data.as_slice();
    let param = param(contents.param, contents.datagram, data);
    // SAFETY: live, and not yet known to the program.
    unsafe { (*event).param = param };
    Some(event)
}

/// Brings the identifier's own queue pair up after the peer's answer, which makes the connection established, or fails the
/// queue pair. Without one, the program does both.
///
/// # Safety
/// - The identifier of the event is live.
unsafe fn drive_qp(event: &mut ffi::rdma_cm_event) {
    // SAFETY: the caller's promise.
    if unsafe { qp::of(event.id) }.is_null() {
        return;
    }
    match event.event {
        Kind::RDMA_CM_EVENT_CONNECT_RESPONSE => {
            // SAFETY: live, with a queue pair.
            let ret = unsafe { qp::bring_up(event.id, Depths::NEGOTIATED) };
            // SAFETY: live.
            let id = unsafe { Id::borrow(event.id) };
            let is_up = ret == 0 && id.call(|manager| manager.establish(id.num())).is_ok();
            if is_up {
                event.event = Kind::RDMA_CM_EVENT_ESTABLISHED;
            } else {
                event.event = Kind::RDMA_CM_EVENT_CONNECT_ERROR;
                event.status = -io::Error::last_os_error().raw_os_error().unwrap_or(0);
                // SAFETY: live.
                unsafe { qp::fail(event.id) };
            }
        }
        Kind::RDMA_CM_EVENT_REJECTED => {
            // SAFETY: live.
            unsafe { qp::fail(event.id) };
        }
        _ => {}
    }
}

/// The parameters of an event, with a pointer to the private data in the event.
fn param(
    peer: Option<ConnParam>,
    datagram: Option<ffi::rdma_ud_param>,
    data: &[u8],
) -> ffi::rdma_cm_event__bindgen_ty_1 {
    let len = u8::try_from(data.len()).unwrap_or(0);
    if let Some(mut ud) = datagram {
        if len > 0 {
            ud.private_data = data.as_ptr().cast();
        }
        ud.private_data_len = len;
        return ffi::rdma_cm_event__bindgen_ty_1 { ud };
    }
    let mut conn = ffi::rdma_conn_param::zeroed();
    if let Some(peer) = peer {
        conn.qp_num = peer.qp_num;
        conn.responder_resources = peer.responder_resources;
        conn.initiator_depth = peer.initiator_depth;
        conn.flow_control = peer.flow_control.into();
        conn.retry_count = peer.retry_count;
        conn.rnr_retry_count = peer.rnr_retry_count;
        conn.srq = peer.srq.into();
    }
    if len > 0 {
        conn.private_data = data.as_ptr().cast();
    }
    conn.private_data_len = len;
    ffi::rdma_cm_event__bindgen_ty_1 { conn }
}

/// Converts an event; `None` for an ended multicast membership.
fn contents(id: &Id, what: Occurrence) -> Option<Contents> {
    use Occurrence as Of;
    Some(match what {
        Of::AddrResolved => Contents::new(Kind::RDMA_CM_EVENT_ADDR_RESOLVED, 0),
        Of::AddrError(status) => Contents::new(Kind::RDMA_CM_EVENT_ADDR_ERROR, status),
        Of::RouteResolved => Contents::new(Kind::RDMA_CM_EVENT_ROUTE_RESOLVED, 0),
        Of::Established => Contents::new(Kind::RDMA_CM_EVENT_ESTABLISHED, 0),
        Of::Disconnected(status) => Contents::new(Kind::RDMA_CM_EVENT_DISCONNECTED, status),
        Of::TimewaitExit => Contents::new(Kind::RDMA_CM_EVENT_TIMEWAIT_EXIT, 0),
        Of::DeviceRemoval => Contents::new(Kind::RDMA_CM_EVENT_DEVICE_REMOVAL, 0),
        Of::Rejected {
            reason,
            private_data,
        } => Contents::with_data(Kind::RDMA_CM_EVENT_REJECTED, reason.into(), private_data),
        Of::Unreachable {
            status,
            private_data,
        } => Contents::with_data(Kind::RDMA_CM_EVENT_UNREACHABLE, status, private_data),
        Of::ConnectRequest {
            child,
            param,
            ece,
            private_data,
        } => Contents {
            param: Some(param),
            child: Some(child),
            ece: Some(ece),
            ..Contents::with_data(Kind::RDMA_CM_EVENT_CONNECT_REQUEST, 0, private_data)
        },
        Of::ConnectResponse {
            param,
            ece,
            private_data,
        } => Contents {
            param: Some(param),
            ece: Some(ece),
            ..Contents::with_data(Kind::RDMA_CM_EVENT_CONNECT_RESPONSE, 0, private_data)
        },
        of_datagrams => return datagram_contents(id, of_datagrams),
    })
}

/// Converts an event of a datagram identifier; `None` for other events and for an ended membership.
fn datagram_contents(id: &Id, what: Occurrence) -> Option<Contents> {
    match what {
        Occurrence::ServiceRequest {
            child,
            private_data,
        } => Some(Contents {
            child: Some(child),
            datagram: Some(ffi::rdma_ud_param::zeroed()),
            ..Contents::with_data(Kind::RDMA_CM_EVENT_CONNECT_REQUEST, 0, private_data)
        }),
        Occurrence::ServiceResolved {
            path,
            qp_num,
            qkey,
            private_data,
        } => Some(Contents {
            datagram: Some(datagram(id, &path, qp_num, qkey)),
            ..Contents::with_data(Kind::RDMA_CM_EVENT_ESTABLISHED, 0, private_data)
        }),
        Occurrence::MulticastJoined {
            membership,
            group,
            local,
        } => {
            let extra = id.extra();
            let found = extra.groups.iter().find(|joined| joined.id == membership)?;
            let path = Path::new(local, group);
            let mut param = datagram(id, &path, MULTICAST_QP, GROUP_QKEY);
            // In this event, the private data pointer is the context of `rdma_join_multicast`.
            param.private_data = found.context;
            Some(Contents {
                datagram: Some(param),
                ..Contents::new(Kind::RDMA_CM_EVENT_MULTICAST_JOIN, 0)
            })
        }
        _ => None,
    }
}

fn datagram(id: &Id, path: &Path, qp_num: u32, qkey: u32) -> ffi::rdma_ud_param {
    let mut param = ffi::rdma_ud_param::zeroed();
    param.ah_attr = address_vector(&id.port(), path);
    param.qp_num = qp_num;
    param.qkey = qkey;
    param
}

/// Names of events, by number.
const NAMES: [&CStr; 16] = [
    c"RDMA_CM_EVENT_ADDR_RESOLVED",
    c"RDMA_CM_EVENT_ADDR_ERROR",
    c"RDMA_CM_EVENT_ROUTE_RESOLVED",
    c"RDMA_CM_EVENT_ROUTE_ERROR",
    c"RDMA_CM_EVENT_CONNECT_REQUEST",
    c"RDMA_CM_EVENT_CONNECT_RESPONSE",
    c"RDMA_CM_EVENT_CONNECT_ERROR",
    c"RDMA_CM_EVENT_UNREACHABLE",
    c"RDMA_CM_EVENT_REJECTED",
    c"RDMA_CM_EVENT_ESTABLISHED",
    c"RDMA_CM_EVENT_DISCONNECTED",
    c"RDMA_CM_EVENT_DEVICE_REMOVAL",
    c"RDMA_CM_EVENT_MULTICAST_JOIN",
    c"RDMA_CM_EVENT_MULTICAST_ERROR",
    c"RDMA_CM_EVENT_ADDR_CHANGE",
    c"RDMA_CM_EVENT_TIMEWAIT_EXIT",
];

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_event_str(kind: Kind) -> *const c_char {
    let index = usize::try_from(kind.0).unwrap_or(usize::MAX);
    let name = NAMES.get(index).copied();
    name.unwrap_or(c"UNKNOWN EVENT").as_ptr()
}
