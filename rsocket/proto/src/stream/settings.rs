//! Sizes of a connection.

/// Maximum number of control messages in flight, reserved in the send queue.
pub const CONTROL_SLOTS: u16 = 4;

/// Number of entries in this side's table of targets. librdmacm's table has two; with more, a peer of this
/// crate can grant room in smaller parts, before half of the buffer is free.
pub const TARGETS: u32 = 8;

/// Receives beyond the advertised ones, for control messages: these need no credit, and an empty queue would
/// delay them by two thirds of a second.
pub const SPARE_RECEIVES: u16 = 8;

/// Minimum free bytes in the send buffer for sending.
pub(super) const SEND_LOWAT: u32 = 2048;

/// Maximum size in bytes of the receive buffer named in the reply to a request, unless its halves would be odd: the
/// peer's address may be forged.
const HALF_OPEN_BUFFER: u32 = 32 << 10;

const MIN_DEPTH: u16 = 16;
const MAX_DEPTH: u16 = 65534;
const MIN_BUFFER: u32 = 4096;
const MAX_BUFFER: u32 = 1 << 30;

/// Transport of messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Framing {
    /// As immediate data of RDMA writes: InfiniBand and RoCE.
    Immediate,
    /// As separate sends after the write: iWARP, without immediate data.
    Separate,
}

/// Sizes of one side of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Depth of the send queue.
    pub send_depth: u16,
    /// Maximum number of unread data messages; the receive queue is [`SPARE_RECEIVES`] deeper.
    pub recv_depth: u16,
    /// Size of the send buffer in bytes, in use: from the first time it is full while the peer has room.
    pub send_buffer: u32,
    /// Size of the receive buffer in bytes, in use: from the first time the peer has run out of room. An even
    /// number.
    pub recv_buffer: u32,
    /// Size of the send buffer in bytes until then.
    pub send_buffer_idle: u32,
    /// Size of the receive buffer in bytes until then, an even number.
    pub recv_buffer_idle: u32,
    /// Maximum size of the send buffer in bytes. Growth starts when the buffer is repeatedly full while the
    /// peer has room.
    pub send_buffer_max: u32,
    /// Maximum size of the receive buffer in bytes. Growth starts when the peer repeatedly runs out of room
    /// although the program reads everything. The buffer grows by doubling.
    pub recv_buffer_max: u32,
    /// Maximum number of bytes sent inline.
    pub inline: u32,
    /// Maximum number of mappings advertised by the peer.
    pub iomap_size: u16,
    /// Transport of messages.
    pub framing: Framing,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            send_depth: 384,
            recv_depth: 384,
            send_buffer: 128 << 10,
            recv_buffer: 128 << 10,
            send_buffer_idle: 16 << 10,
            recv_buffer_idle: 32 << 10,
            send_buffer_max: 512 << 10,
            recv_buffer_max: 512 << 10,
            inline: 64,
            iomap_size: 0,
            framing: Framing::Immediate,
        }
    }
}

impl Settings {
    /// Clamps the settings to the limits of the protocol, and of a device with queues of at most `max_depth`
    /// entries.
    #[must_use]
    pub fn clamped(self, max_depth: u32) -> Self {
        let max = u16::try_from(max_depth).unwrap_or(u16::MAX).min(MAX_DEPTH);
        let buffer = |bytes: u32| bytes.clamp(MIN_BUFFER, MAX_BUFFER);
        let idle = |idle: u32, in_use: u32| buffer(idle.min(in_use));
        let at_most = |max: u32, in_use: u32| buffer(max.max(in_use));
        let depth = |requested: u16, spare| requested.max(MIN_DEPTH).min(max.saturating_sub(spare));
        Self {
            send_depth: depth(self.send_depth, 0),
            recv_depth: depth(self.recv_depth, SPARE_RECEIVES),
            send_buffer: buffer(self.send_buffer),
            recv_buffer: buffer(self.recv_buffer) & !1,
            send_buffer_idle: idle(self.send_buffer_idle, self.send_buffer),
            recv_buffer_idle: idle(self.recv_buffer_idle, self.recv_buffer) & !1,
            send_buffer_max: at_most(self.send_buffer_max, self.send_buffer),
            recv_buffer_max: at_most(self.recv_buffer_max, self.recv_buffer) & !1,
            ..self
        }
    }

    /// Sets the size of the send buffer and disables its growth.
    pub fn set_send_buffer(&mut self, bytes: u32) {
        self.send_buffer = bytes;
        (self.send_buffer_idle, self.send_buffer_max) = (bytes, bytes);
    }

    /// Sets the size of the receive buffer and disables its growth.
    pub fn set_recv_buffer(&mut self, bytes: u32) {
        self.recv_buffer = bytes;
        (self.recv_buffer_idle, self.recv_buffer_max) = (bytes, bytes);
    }

    /// Makes the first buffers as large as those in use, as with librdmacm.
    pub fn set_full_buffers(&mut self) {
        self.send_buffer_idle = self.send_buffer;
        self.recv_buffer_idle = self.recv_buffer;
    }

    /// Returns the settings of the passive side during the handshake: the receive buffer is halved down to 32 KiB, and
    /// grows to its size in use once the peer has [completed](super::Stream::want_receive_buffer) the handshake.
    #[must_use]
    pub fn half_open(self) -> Self {
        let mut size = self.recv_buffer_idle;
        while size > HALF_OPEN_BUFFER && size.is_multiple_of(4) {
            size /= 2;
        }
        Self {
            recv_buffer_idle: size,
            ..self
        }
    }

    /// Size of the first target in bytes: all of the receive buffer if smaller than in use, for the data before the
    /// program's next call, else half of it, as with librdmacm.
    pub fn first_target(&self) -> u32 {
        if self.recv_buffer_idle < self.recv_buffer {
            return self.recv_buffer_idle;
        }
        self.recv_buffer_idle / 2
    }

    /// Whether a target fits inline. Otherwise the source is a [`PayloadSource::Slot`](super::PayloadSource::Slot).
    pub fn inlines_targets(&self) -> bool {
        self.inline as usize >= super::Target::SIZE
    }

    /// Size in bytes of the control message slots beside the send buffer.
    pub fn slots_size(&self) -> usize {
        if self.inlines_targets() {
            return 0;
        }
        usize::from(CONTROL_SLOTS) * super::Target::SIZE
    }

    /// Size in bytes of the table written by the peer: targets, then mappings.
    pub fn table_size(&self) -> usize {
        TARGETS as usize * super::Target::SIZE + usize::from(self.iomap_size) * super::Mapping::SIZE
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_out_of_range_are_clamped() {
        let least = Settings {
            send_depth: 0,
            recv_depth: 1,
            send_buffer: 1,
            recv_buffer: 1,
            ..Settings::default()
        };
        let least = least.clamped(16384);
        assert_eq!((least.send_depth, least.recv_depth), (16, 16));
        assert_eq!((least.send_buffer, least.recv_buffer), (4096, 4096));
        let largest = Settings {
            send_depth: u16::MAX,
            recv_depth: u16::MAX,
            send_buffer: u32::MAX,
            recv_buffer: 4097 * 3,
            ..Settings::default()
        };
        let largest = largest.clamped(1000);
        assert_eq!((largest.send_depth, largest.recv_depth), (1000, 992));
        assert_eq!(largest.recv_buffer, 12290);
        assert_eq!(largest.clamped(u32::MAX), largest);
        assert_eq!(
            Settings::default().clamped(1 << 20),
            Settings::default(),
            "defaults are within the limits"
        );
    }

    #[test]
    fn buffer_of_any_fixed_size_neither_grows_nor_shrinks() {
        for (bytes, size) in [
            (0, 4096),
            (4095, 4096),
            (65_537, 65_537),
            (u32::MAX, MAX_BUFFER),
        ] {
            let mut settings = Settings::default();
            settings.set_send_buffer(bytes);
            settings.set_recv_buffer(bytes);
            let fixed = settings.clamped(u32::MAX);
            let sends = [
                fixed.send_buffer_idle,
                fixed.send_buffer,
                fixed.send_buffer_max,
            ];
            let receives = [
                fixed.recv_buffer_idle,
                fixed.recv_buffer,
                fixed.recv_buffer_max,
            ];
            assert_eq!(sends, [size; 3]);
            assert_eq!(receives, [size & !1; 3]);
        }
    }

    #[test]
    fn table_size_covers_targets_and_mappings() {
        let settings = Settings {
            iomap_size: 3,
            ..Settings::default()
        };
        assert_eq!(settings.table_size(), 8 * 16 + 3 * 24);
    }

    #[test]
    fn first_target_is_the_idle_buffer_or_half_of_a_fixed_one() {
        let mut settings = Settings::default();
        assert_eq!(settings.first_target(), 32 << 10);
        let mut full = settings;
        full.set_full_buffers();
        settings.set_recv_buffer(128 << 10);
        for settings in [settings, full] {
            assert_eq!(settings.first_target(), 64 << 10);
        }
        assert_eq!(full.send_buffer_idle, 128 << 10);
    }

    #[test]
    fn half_open_receive_buffer_is_halved_to_32_kib() {
        let half_open = |bytes| {
            let mut settings = Settings::default();
            settings.set_recv_buffer(bytes);
            let half_open = settings.half_open();
            assert_eq!(half_open.recv_buffer, bytes);
            (half_open.recv_buffer_idle, half_open.first_target())
        };
        assert_eq!(half_open(128 << 10), (32 << 10, 32 << 10));
        assert_eq!(half_open(1 << 30), (32 << 10, 32 << 10));
        assert_eq!(half_open(32 << 10), (32 << 10, 16 << 10));
        assert_eq!(half_open(65_540), (32_770, 32_770));
        assert_eq!(half_open(65_538), (65_538, 32_769));
        assert_eq!(Settings::default().half_open(), Settings::default());
    }

    #[test]
    fn targets_beyond_inline_size_have_slots() {
        let with = |inline| Settings {
            inline,
            ..Settings::default()
        };
        assert!(with(16).inlines_targets() && !with(15).inlines_targets());
        assert_eq!((with(16).slots_size(), with(15).slots_size()), (0, 4 * 16));
    }
}
