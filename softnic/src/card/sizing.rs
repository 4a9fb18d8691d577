//! Capacities granted by drivers: sizes of requests in the queue's memory, and roundings of the number of requests.

use super::{
    Card,
    table::{Sizing, Specification},
};
use crate::engine::{Capacity, QpKind};

/// Bytes of an element in a request.
const ELEMENT: usize = 16;

/// Sizes in mlx5's and mlx4's requests: a basic block, and the header of inline data.
const BLOCK: usize = 64;
const INLINE_HEADER: usize = 4;

/// Operations of a queue pair that lengthen its requests on some cards.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SendOperations {
    pub(crate) rdma: bool,
    pub(crate) atomics: bool,
    /// Bindings of windows and invalidations of keys.
    pub(crate) windows: bool,
}

impl SendOperations {
    /// Operations of a queue pair made by `ibv_create_qp`.
    const fn of(kind: QpKind) -> Self {
        let all = !matches!(kind, QpKind::Ud | QpKind::Srd);
        Self {
            rdma: all,
            atomics: all,
            windows: all,
        }
    }
}

/// The queues of a new queue pair.
#[derive(Clone, Copy, Debug)]
pub(crate) struct QueueRequest {
    pub(crate) kind: QpKind,
    /// The operations requested by `ibv_create_qp_ex`.
    pub(crate) operations: Option<SendOperations>,
    /// Whether the queue pair takes receives of its own.
    pub(crate) has_receives: bool,
    pub(crate) capacity: Capacity,
}

/// Bytes of mlx5's segments before the elements: `_sq_overhead` in `mlx5/verbs.c`.
fn mlx5_segments(request: &QueueRequest) -> usize {
    const CONTROL: usize = 16;
    const REMOTE_ADDRESS: usize = 16;
    const ATOMIC: usize = 16;
    /// Control, attributes of the key, and the longest list.
    const KEY: usize = 48 + 64 + 64;
    const DATAGRAM: usize = 48;
    const XRC: usize = 16;
    let has = (request.operations).unwrap_or(SendOperations::of(request.kind));
    let mut bytes = CONTROL;
    for (is_used, segments) in [
        (has.rdma, REMOTE_ADDRESS),
        (has.atomics, REMOTE_ADDRESS + ATOMIC),
        (has.windows, KEY),
    ] {
        if is_used {
            bytes = bytes.max(CONTROL + segments);
        }
    }
    bytes
        + match request.kind {
            QpKind::Ud | QpKind::Srd | QpKind::Dci => DATAGRAM,
            QpKind::XrcSend | QpKind::XrcRecv => XRC,
            QpKind::Rc | QpKind::Uc | QpKind::Dct => 0,
        }
}

fn mlx5(
    request: &QueueRequest,
    (max_send_bytes, max_blocks): (usize, usize),
) -> Result<Capacity, i32> {
    let mut granted = request.capacity;
    if granted.max_send_wr > 0 {
        let segments = mlx5_segments(request);
        let elements = segments + granted.max_send_sge * ELEMENT;
        let inline = match granted.max_inline {
            0 => 0,
            bytes => segments + (INLINE_HEADER + bytes).next_multiple_of(ELEMENT),
        };
        let bytes = elements.max(inline).next_multiple_of(BLOCK);
        let queue = (granted.max_send_wr * bytes).next_power_of_two();
        if bytes > max_send_bytes || queue / BLOCK > max_blocks {
            return Err(libc::EINVAL);
        }
        granted.max_inline = bytes - segments - INLINE_HEADER;
        granted.max_send_wr = queue / bytes;
    }
    if granted.max_recv_wr > 0 {
        let bytes = (granted.max_recv_sge.max(1) * ELEMENT).next_power_of_two();
        let queue = (granted.max_recv_wr.next_power_of_two() * bytes).max(BLOCK);
        granted.max_recv_wr = queue / bytes;
        granted.max_recv_sge = bytes / ELEMENT;
    }
    Ok(granted)
}

fn mlx4(request: &QueueRequest, row: &Specification, max_wqes: usize) -> Result<Capacity, i32> {
    const CONTROL: usize = 16;
    const REMOTE_ADDRESS: usize = 16;
    const DATAGRAM: usize = 48;
    /// Bytes read ahead by the device.
    const HEADROOM: usize = 2048;
    let mut granted = request.capacity;
    let is_datagram = request.kind == QpKind::Ud;
    let segment = if is_datagram {
        DATAGRAM
    } else {
        REMOTE_ADDRESS
    };
    if request.kind != QpKind::XrcRecv {
        // Each block of 64 bytes has a header of its own for inline data.
        let start = (CONTROL + segment) % BLOCK;
        let payload = BLOCK - INLINE_HEADER;
        let headers = (granted.max_inline + start).div_ceil(payload) * INLINE_HEADER;
        let inline = (granted.max_inline + headers).div_ceil(ELEMENT);
        let elements = granted.max_send_sge.max(inline).max(2);
        let bytes = (CONTROL + segment + elements * ELEMENT)
            .next_power_of_two()
            .max(BLOCK);
        let spare = HEADROOM / bytes + 1;
        let wqes = (granted.max_send_wr + spare).next_power_of_two();
        if wqes > max_wqes {
            return Err(libc::EINVAL);
        }
        let payload = bytes - CONTROL - segment;
        granted.max_send_wr = wqes - spare;
        granted.max_send_sge = payload / ELEMENT;
        granted.max_inline = payload - INLINE_HEADER * payload.div_ceil(BLOCK);
    }
    if request.has_receives {
        granted.max_recv_wr = granted.max_recv_wr.max(1).next_power_of_two();
        granted.max_recv_wr = granted.max_recv_wr.min(row.max_qp_wr as usize);
        granted.max_recv_sge = granted.max_recv_sge.max(1).next_power_of_two();
    }
    Ok(granted)
}

/// Logarithm of the quanta of an irdma request: `irdma_get_wqe_shift` in `irdma/uk.c`.
fn quanta_shift(generation: u8, elements: usize, inline: usize) -> u32 {
    if generation > 1 {
        match () {
            () if elements <= 1 && inline <= 8 => 0,
            () if elements < 4 && inline <= 39 => 1,
            () if elements < 8 && inline <= 101 => 2,
            () => 3,
        }
    } else {
        match () {
            () if elements <= 1 && inline <= 16 => 0,
            () if elements < 4 && inline <= 48 => 1,
            () => 2,
        }
    }
}

fn irdma(request: &QueueRequest, (generation, max_quanta): (u8, usize)) -> Result<Capacity, i32> {
    /// Quanta that the device keeps.
    const OF_SENDS: usize = 258;
    const OF_RECEIVES: usize = 1;
    const MIN_REQUESTS: usize = 8;
    /// Receives of the first generation have 4 quanta.
    const FIRST_GENERATION_SHIFT: u32 = 2;
    let depth = |requests: usize, shift: u32, kept: usize| {
        let quanta = ((requests << shift) + kept).next_power_of_two();
        (quanta.max(MIN_REQUESTS << shift) - kept) >> shift
    };
    let mut granted = request.capacity;
    // An element of each request is for immediate data.
    let elements = granted.max_send_sge + usize::from(generation > 1);
    let shift = quanta_shift(generation, elements, granted.max_inline);
    granted.max_send_wr = depth(granted.max_send_wr, shift, OF_SENDS);
    if (granted.max_send_wr << shift) + OF_SENDS > max_quanta {
        return Err(libc::EINVAL);
    }
    if request.has_receives {
        let shift = match generation {
            1 => FIRST_GENERATION_SHIFT,
            _ => quanta_shift(generation, granted.max_recv_sge, 0),
        };
        granted.max_recv_wr = depth(granted.max_recv_wr, shift, OF_RECEIVES);
    }
    Ok(granted)
}

fn efa(request: &QueueRequest, max_descriptors: usize) -> Result<Capacity, i32> {
    let mut granted = request.capacity;
    let elements = granted.max_recv_sge.max(1);
    if granted.max_recv_wr > max_descriptors / elements {
        return Err(libc::EINVAL);
    }
    granted.max_send_wr = granted.max_send_wr.next_power_of_two();
    granted.max_recv_wr = (elements * granted.max_recv_wr).next_power_of_two() / elements;
    Ok(granted)
}

fn cxgb4(request: &QueueRequest) -> Capacity {
    /// Requests of the smallest queue, which has one more entry.
    const MIN: usize = 7;
    let mut granted = request.capacity;
    granted.max_send_wr = granted.max_send_wr.max(MIN);
    if request.has_receives {
        granted.max_recv_wr = granted.max_recv_wr.max(MIN);
    }
    granted
}

fn rxe(request: &QueueRequest) -> Capacity {
    let mut granted = request.capacity;
    granted.max_inline = granted.max_inline.max(granted.max_send_sge * ELEMENT);
    granted.max_send_sge = granted.max_inline / ELEMENT;
    granted.max_send_wr = (granted.max_send_wr + 1).next_power_of_two() - 1;
    if request.has_receives {
        granted.max_recv_wr = (granted.max_recv_wr + 1).next_power_of_two() - 1;
    }
    granted
}

fn siw(request: &QueueRequest) -> Result<Capacity, i32> {
    let mut granted = request.capacity;
    if granted.max_send_wr == 0 {
        return Err(libc::EINVAL);
    }
    granted.max_send_wr = granted.max_send_wr.next_power_of_two();
    if granted.max_recv_wr > 0 {
        granted.max_recv_wr = granted.max_recv_wr.next_power_of_two();
    }
    Ok(granted)
}

fn erdma(request: &QueueRequest) -> Result<Capacity, i32> {
    let mut granted = request.capacity;
    if granted.max_send_wr == 0 || granted.max_recv_wr == 0 {
        return Err(libc::EINVAL);
    }
    granted.max_send_wr = granted.max_send_wr.next_power_of_two();
    granted.max_recv_wr = granted.max_recv_wr.next_power_of_two();
    Ok(granted)
}

impl Card {
    /// The capacity of a new queue pair, or the error number of the driver.
    pub(crate) fn qp_capacity(self, request: &QueueRequest) -> Result<Capacity, i32> {
        let row = self.specification();
        if !row.kinds.contains(&request.kind) {
            return Err(row.kind_errno);
        }
        let capacity = request.capacity;
        let max_inline = row.max_inline.unwrap_or(u32::MAX);
        if capacity.max_send_wr.max(capacity.max_recv_wr) > row.max_qp_wr as usize {
            return Err(row.depth_errno);
        }
        if capacity.max_send_sge > row.max_send_sge as usize
            || capacity.max_recv_sge > row.max_recv_sge as usize
            || capacity.max_inline > max_inline as usize
        {
            return Err(libc::EINVAL);
        }
        match row.sizing {
            Sizing::Mlx5 {
                max_send_bytes,
                max_blocks,
            } => mlx5(request, (max_send_bytes, max_blocks)),
            Sizing::Mlx4 { max_wqes } => mlx4(request, row, max_wqes),
            Sizing::Irdma {
                generation,
                max_quanta,
            } => irdma(request, (generation, max_quanta)),
            Sizing::Efa { max_descriptors } => efa(request, max_descriptors),
            Sizing::Cxgb4 => Ok(cxgb4(request)),
            Sizing::Erdma => erdma(request),
            Sizing::Rxe => Ok(rxe(request)),
            Sizing::Siw => siw(request),
            Sizing::AsRequested => Ok(capacity),
        }
    }

    /// The capacity of a completion queue, or the error number of the driver. `default_max` is the limit of a card without a
    /// source.
    pub(crate) fn cq_capacity(self, cqe: usize, default_max: usize) -> Result<usize, i32> {
        const MIN_OF_ERDMA: usize = 64;
        let row = self.specification();
        let max = row.max_cqe.map_or(default_max, |max| max as usize);
        if cqe == 0 || cqe > max {
            return Err(row.cq_errno);
        }
        Ok(match row.sizing {
            Sizing::Mlx5 { .. } | Sizing::Mlx4 { .. } | Sizing::Rxe => {
                (cqe + 1).next_power_of_two() - 1
            }
            Sizing::Efa { .. } | Sizing::Siw => cqe.next_power_of_two(),
            Sizing::Erdma => cqe.max(MIN_OF_ERDMA).next_power_of_two(),
            // Two entries are the device's, which counts in sixteens.
            Sizing::Cxgb4 => (cqe + 2).next_multiple_of(16) - 2,
            Sizing::Irdma { .. } | Sizing::AsRequested => cqe,
        })
    }

    /// The capacity of a shared receive queue, as receives and elements, or the error number of the driver. `default_max` are
    /// the limits of a card without a source.
    pub(crate) fn srq_capacity(
        self,
        (max_wr, max_sge): (usize, usize),
        default_max: (usize, usize),
    ) -> Result<(usize, usize), i32> {
        /// Bytes before the elements of a receive of mlx5.
        const LINK: usize = 16;
        const MIN_BYTES: usize = 32;
        let row = self.specification();
        let Some(limits) = row.srq else {
            return Err(libc::EOPNOTSUPP);
        };
        let max_wrs = limits.max_wr.map_or(default_max.0, |max| max as usize);
        let max_sges = limits.max_sge.map_or(default_max.1, |max| max as usize);
        if max_wr == 0 || max_wr > max_wrs || max_sge > max_sges {
            return Err(row.depth_errno);
        }
        let below_power = (max_wr + 1).next_power_of_two() - 1;
        Ok(match row.sizing {
            Sizing::Mlx5 { .. } => {
                let bytes = (LINK + max_sge * ELEMENT).next_power_of_two();
                (below_power, (bytes.max(MIN_BYTES) - LINK) / ELEMENT)
            }
            Sizing::Mlx4 { .. } | Sizing::Rxe => (below_power, max_sge),
            Sizing::Siw => (max_wr.next_power_of_two(), max_sge),
            _ => (max_wr, max_sge),
        })
    }

    /// The granted depth of reads, for a limit, or `EINVAL`.
    pub(crate) fn depth(self, requested: u8, max: u8) -> Result<u8, i32> {
        match self.specification().lowers_depths {
            _ if requested <= max => Ok(requested),
            true => Ok(max),
            false => Err(libc::EINVAL),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The granted capacity of a reliable queue pair: send requests, receives, elements of both, inline bytes.
    fn rc(card: Card, requested: [usize; 5]) -> Result<[usize; 5], i32> {
        grant(card, QpKind::Rc, None, requested)
    }

    fn grant(
        card: Card,
        kind: QpKind,
        operations: Option<SendOperations>,
        [send, recv, send_sge, recv_sge, inline]: [usize; 5],
    ) -> Result<[usize; 5], i32> {
        let request = QueueRequest {
            kind,
            operations,
            has_receives: true,
            capacity: Capacity {
                max_send_wr: send,
                max_recv_wr: recv,
                max_send_sge: send_sge,
                max_recv_sge: recv_sge,
                max_inline: inline,
            },
        };
        let granted = card.qp_capacity(&request)?;
        Ok([
            granted.max_send_wr,
            granted.max_recv_wr,
            granted.max_send_sge,
            granted.max_recv_sge,
            granted.max_inline,
        ])
    }

    #[test]
    fn mlx5_fits_requests_into_basic_blocks() {
        let card = Card::ConnectX5;
        // 192 bytes of segments and an element take 4 blocks.
        assert_eq!(rc(card, [100, 100, 1, 3, 0]), Ok([128, 128, 1, 4, 60]));
        assert_eq!(rc(card, [8192, 1, 1, 1, 0]), Ok([8192, 4, 1, 1, 60]));
        assert_eq!(rc(card, [8193, 1, 1, 1, 0]), Err(libc::EINVAL));
        assert_eq!(rc(card, [8192, 1, 4, 1, 64]), Err(libc::EINVAL));
        assert_eq!(rc(card, [1, 1, 1, 1, 828]).unwrap()[4], 828);
        assert_eq!(rc(card, [1, 1, 1, 1, 829]), Err(libc::EINVAL));
        // 5 blocks do not divide a power of two.
        assert_eq!(rc(card, [100, 1, 1, 1, 100]).unwrap()[0], 102);
        let writes = SendOperations {
            rdma: true,
            atomics: false,
            windows: false,
        };
        let only_writes = grant(card, QpKind::Rc, Some(writes), [32768, 1, 1, 1, 0]);
        assert_eq!(only_writes.unwrap()[..1], [32768]);
        let datagrams = grant(card, QpKind::Ud, None, [16384, 1, 1, 1, 0]);
        assert_eq!(datagrams.unwrap()[..1], [16384]);
        let datagrams = grant(card, QpKind::Ud, None, [16385, 1, 1, 1, 0]);
        assert_eq!(datagrams, Err(libc::EINVAL));
    }

    #[test]
    fn mlx4_keeps_spare_requests() {
        let card = Card::ConnectX3;
        // Requests of 64 bytes, 33 of them spare.
        assert_eq!(rc(card, [100, 100, 1, 3, 0]), Ok([223, 128, 2, 4, 28]));
        assert_eq!(
            rc(card, [16351, 16351, 1, 1, 0]).unwrap()[..2],
            [16351, 16351]
        );
        assert_eq!(rc(card, [16352, 1, 1, 1, 0]), Err(libc::EINVAL));
        // Requests of 1024 bytes, 3 of them spare.
        assert_eq!(rc(card, [16351, 1, 32, 1, 0]).unwrap()[0], 16381);
        assert_eq!(rc(card, [1, 1, 1, 1, 1025]), Err(libc::EINVAL));
    }

    #[test]
    fn irdma_keeps_quanta() {
        // The maximum of elements and that of requests go together; more inline data leave fewer requests to the 1.74.
        assert_eq!(rc(Card::E810, [4063, 1, 13, 1, 0]).unwrap()[0], 4063);
        assert_eq!(rc(Card::E810, [4064, 1, 1, 1, 0]), Err(libc::EINVAL));
        assert_eq!(rc(Card::E810Fw174, [8127, 1, 6, 1, 101]).unwrap()[0], 8127);
        assert_eq!(rc(Card::E810, [100, 100, 1, 1, 0]), Ok([127, 127, 1, 1, 0]));
        assert_eq!(rc(Card::E810, [1, 1, 1, 1, 102]), Err(libc::EINVAL));
        assert_eq!(
            rc(Card::X722, [895, 100, 3, 3, 48]),
            Ok([895, 127, 3, 3, 48])
        );
        assert_eq!(rc(Card::X722, [895, 1, 3, 3, 49]), Err(libc::EINVAL));
        let datagrams = grant(Card::X722, QpKind::Ud, None, [1, 1, 1, 1, 0]);
        assert_eq!(datagrams, Err(libc::EOPNOTSUPP));
    }

    #[test]
    fn efa_has_descriptors_for_elements() {
        let ud = |requested| grant(Card::Efa, QpKind::Ud, None, requested);
        assert_eq!(ud([100, 100, 2, 3, 32]), Ok([128, 170, 2, 3, 32]));
        assert_eq!(ud([4096, 4096, 2, 1, 0]).unwrap()[1], 4096);
        assert_eq!(ud([1, 1, 1, 1, 33]), Err(libc::EINVAL));
        assert_eq!(rc(Card::Efa, [1, 1, 1, 1, 0]), Err(libc::EOPNOTSUPP));
    }

    #[test]
    fn other_drivers_round_as_their_sources() {
        assert_eq!(rc(Card::T6, [1, 1, 1, 1, 0]), Ok([7, 7, 1, 1, 0]));
        assert_eq!(rc(Card::T6, [8190, 1, 1, 1, 0]), Err(libc::E2BIG));
        assert_eq!(
            rc(Card::Rxe, [100, 100, 3, 1, 10]),
            Ok([127, 127, 3, 1, 48])
        );
        assert_eq!(rc(Card::Siw, [100, 0, 6, 6, 80]), Ok([128, 0, 6, 6, 80]));
        assert_eq!(rc(Card::Siw, [0, 1, 1, 1, 0]), Err(libc::EINVAL));
        assert_eq!(
            rc(Card::Erdma, [100, 100, 6, 1, 96]),
            Ok([128, 128, 6, 1, 96])
        );
        assert_eq!(rc(Card::Erdma, [100, 0, 1, 1, 0]), Err(libc::EINVAL));
        assert_eq!(
            rc(Card::BnxtP5, [100, 100, 13, 13, 208]),
            Ok([100, 100, 13, 13, 208])
        );
        let xrc = grant(Card::BnxtP5, QpKind::XrcSend, None, [1, 0, 1, 0, 0]);
        assert_eq!(xrc, Err(libc::EINVAL));
    }

    #[test]
    fn completion_queues_are_rounded_and_limited() {
        let cq = |card: Card, cqe| card.cq_capacity(cqe, 1 << 22);
        for (card, requested, granted) in [
            (Card::ConnectX5, 100, 127),
            (Card::ConnectX5, 128, 255),
            (Card::E810, 100, 100),
            (Card::Efa, 100, 128),
            (Card::T6, 15, 30),
            (Card::Erdma, 10, 64),
            (Card::Rxe, 127, 127),
            (Card::Siw, 129, 256),
        ] {
            assert_eq!(cq(card, requested), Ok(granted), "{card}");
            assert_eq!(cq(card, 0), Err(card.specification().cq_errno), "{card}");
        }
        for card in Card::ALL {
            if let Some(max) = card.specification().max_cqe {
                let max = max as usize;
                assert!(cq(*card, max).unwrap() >= max, "{card}");
                assert!(cq(*card, max + 1).is_err(), "{card}");
            }
        }
    }

    #[test]
    fn shared_queues_are_rounded_and_limited() {
        let srq = |card: Card, requested| card.srq_capacity(requested, (1 << 14, 32));
        assert_eq!(srq(Card::ConnectX5, (100, 2)), Ok((127, 3)));
        assert_eq!(srq(Card::ConnectX5, (32767, 31)), Ok((32767, 31)));
        assert_eq!(srq(Card::ConnectX5, (32768, 1)), Err(libc::EINVAL));
        assert_eq!(srq(Card::T6, (8190, 1)), Err(libc::E2BIG));
        assert_eq!(srq(Card::Siw, (100, 6)), Ok((128, 6)));
        assert_eq!(srq(Card::E810, (1, 1)), Err(libc::EOPNOTSUPP));
    }

    #[test]
    fn depths_above_the_limit_are_refused_or_lowered() {
        assert_eq!(Card::ConnectX5.depth(16, 16), Ok(16));
        assert_eq!(Card::ConnectX5.depth(17, 16), Err(libc::EINVAL));
        assert_eq!(Card::BnxtP5.depth(128, 126), Ok(126));
    }
}
