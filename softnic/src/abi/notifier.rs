//! Delivery of the engine's events to the program's descriptors.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
};

use ibverbs_sys::ibv_event_type;

use super::{
    acks::Acks,
    cm::{CmSubject, Queued},
    event_queue::EventQueue,
};
use crate::{
    cm::{CmEvent, IdNum},
    engine::{CqId, Event, QpNum, SrqId},
};

/// Completion events: the addresses of their completion queues.
pub(super) type CompletionEvents = EventQueue<u64>;

/// Asynchronous events of a context.
pub(super) type AsyncEvents = EventQueue<AsyncEvent>;

/// An asynchronous event.
#[derive(Clone, Copy, Debug)]
pub(super) struct AsyncEvent {
    /// Address of the object's C struct, or the number of the port.
    pub(super) addr: u64,
    pub(super) kind: ibv_event_type,
}

/// Destination of an object's events.
#[derive(Clone, Debug)]
pub(super) struct Subject {
    /// Address of the object's C struct.
    pub(super) addr: u64,
    pub(super) events: Arc<AsyncEvents>,
    pub(super) acks: Arc<Acks>,
}

/// Destination of a completion queue's notifications.
#[derive(Clone, Debug)]
pub(super) struct CqSubject {
    pub(super) addr: u64,
    pub(super) channel: Option<Arc<CompletionEvents>>,
    /// Unacknowledged completion events.
    pub(super) acks: Arc<Acks>,
    pub(super) errors: Subject,
}

/// Objects of a device with event delivery.
#[derive(Debug, Default)]
pub(super) struct Subjects {
    pub(super) cqs: HashMap<CqId, CqSubject>,
    /// Handles of each queue pair: several only if opened by `ibv_open_qp`.
    pub(super) qps: HashMap<QpNum, Vec<Subject>>,
    pub(super) srqs: HashMap<SrqId, Subject>,
    pub(super) ids: HashMap<IdNum, CmSubject>,
    /// Open contexts.
    pub(super) contexts: Vec<Weak<AsyncEvents>>,
}

/// Receiver of a device's events.
#[derive(Debug, Default)]
pub(crate) struct Notifier {
    subjects: Mutex<Subjects>,
}

/// Number of the only port, in place of an object's address.
const PORT: u64 = 1;

impl Subject {
    fn raise(&self, kind: ibv_event_type) {
        self.acks.add();
        self.events.push(AsyncEvent {
            addr: self.addr,
            kind,
        });
    }
}

impl Subjects {
    /// Removes a handle of a queue pair, by address.
    pub(super) fn remove_qp(&mut self, qp: QpNum, addr: u64) -> Option<Subject> {
        let handles = self.qps.get_mut(&qp)?;
        let index = handles.iter().position(|subject| subject.addr == addr)?;
        let removed = handles.swap_remove(index);
        if handles.is_empty() {
            self.qps.remove(&qp);
        }
        Some(removed)
    }

    /// Raises an event of the device or of the port in all contexts.
    fn broadcast(&mut self, kind: ibv_event_type) {
        self.contexts.retain(|events| {
            let events = events.upgrade();
            if let Some(events) = &events {
                events.push(AsyncEvent { addr: PORT, kind });
            }
            events.is_some()
        });
    }
}

impl Notifier {
    pub(super) fn subjects(&self) -> MutexGuard<'_, Subjects> {
        self.subjects.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Delivers an event of the connection manager to the program. Called with the fabric locked.
    pub(crate) fn cm_event(&self, event: CmEvent) {
        if let Some(subject) = self.subjects().ids.get(&event.id) {
            subject.queue.push(Queued {
                addr: subject.addr,
                what: event.what,
                acks: Arc::clone(&subject.acks),
            });
        }
    }

    /// Delivers an event of the engine to the program. Called with the fabric locked.
    pub(crate) fn event(&self, event: Event) {
        use ibv_event_type as on;
        let mut subjects = self.subjects();
        match event {
            Event::PortActive => subjects.broadcast(on::IBV_EVENT_PORT_ACTIVE),
            Event::PortError => subjects.broadcast(on::IBV_EVENT_PORT_ERR),
            Event::GidChange => subjects.broadcast(on::IBV_EVENT_GID_CHANGE),
            Event::DeviceFatal => subjects.broadcast(on::IBV_EVENT_DEVICE_FATAL),
            _ => {}
        }
        let qp = |qp: QpNum, kind: on| {
            for subject in subjects.qps.get(&qp).into_iter().flatten() {
                subject.raise(kind);
            }
        };
        match event {
            Event::Completion(cq) => {
                if let Some(subject) = subjects.cqs.get(&cq)
                    && let Some(channel) = &subject.channel
                {
                    subject.acks.add();
                    channel.push(subject.addr);
                }
            }
            Event::CqError(cq) => {
                if let Some(subject) = subjects.cqs.get(&cq) {
                    subject.errors.raise(on::IBV_EVENT_CQ_ERR);
                }
            }
            Event::QpFatal(num) => qp(num, on::IBV_EVENT_QP_FATAL),
            Event::QpRequestError(num) => qp(num, on::IBV_EVENT_QP_REQ_ERR),
            Event::QpAccessError(num) => qp(num, on::IBV_EVENT_QP_ACCESS_ERR),
            Event::CommunicationEstablished(num) => qp(num, on::IBV_EVENT_COMM_EST),
            Event::SendQueueDrained(num) => qp(num, on::IBV_EVENT_SQ_DRAINED),
            Event::LastWqeReached(num) => qp(num, on::IBV_EVENT_QP_LAST_WQE_REACHED),
            Event::SrqLimit(srq) => {
                if let Some(subject) = subjects.srqs.get(&srq) {
                    subject.raise(on::IBV_EVENT_SRQ_LIMIT_REACHED);
                }
            }
            Event::PortActive | Event::PortError | Event::GidChange | Event::DeviceFatal => {}
        }
    }
}
