//! Path records, as defined by InfiniBand's subnet administration.

use ibverbs_sys::{self as ffi, __be16, __be32, __be64};
use verbs::{Gid, attr::Mtu};

/// `ibv_sa_path_rec`—A path to the peer.
///
/// RoCE and iWARP have no subnet administration; the kernel constructs a record or has none.
#[doc(alias = "ibv_sa_path_rec")]
#[doc(alias = "ibv_path_record")]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PathRecord {
    /// GID of the peer.
    pub dgid: Gid,
    /// GID of this side.
    pub sgid: Gid,
    /// LID of the peer.
    pub dlid: u16,
    /// LID of this side.
    pub slid: u16,
    /// Flow label, by which switches keep the packets of a flow on one path; 20 bits.
    pub flow_label: u32,
    /// Maximum number of routers on the path.
    pub hop_limit: u8,
    /// Traffic class, for the quality of service in switches.
    pub traffic_class: u8,
    /// Whether the reverse path is the same.
    pub reversible: bool,
    /// P_Key of the partition.
    pub pkey: u16,
    /// Service level; 4 bits.
    pub sl: u8,
    /// Maximum payload of a packet, in InfiniBand's encoding; see [`mtu`](Self::mtu).
    pub mtu_code: u8,
    /// Speed, in InfiniBand's encoding.
    pub rate_code: u8,
    /// Maximum time of a packet in transit: 4.096 µs times two to this power.
    pub packet_life_time: u8,
    /// Preference among several paths; the lowest value is preferred.
    pub preference: u8,
}

/// Selector "exactly", in the upper two bits of encoded sizes and times.
const EXACTLY: u8 = 2 << 6;

impl PathRecord {
    /// Maximum payload of a packet.
    pub fn mtu(&self) -> Mtu {
        Mtu(u32::from(self.mtu_code))
    }

    /// Length of the result of [`encode`](Self::encode), in bytes.
    pub const SIZE: usize = size_of::<ffi::ibv_path_data>();

    /// Encodes the path in the representation of C programs: `struct ibv_path_data`, with flags followed by a
    /// record in the wire format of InfiniBand.
    ///
    /// ```
    /// use cm::PathRecord;
    ///
    /// let path = PathRecord {
    ///     dlid: 7,
    ///     ..PathRecord::default()
    /// };
    /// assert_eq!(PathRecord::decode(&path.encode()), path);
    /// ```
    pub fn encode(self) -> [u8; Self::SIZE] {
        let ffi::ibv_path_data { flags, path, .. } = self.to_raw();
        let mut bytes = [0; Self::SIZE];
        let mut at = 0;
        let mut put = |field: &[u8]| {
            bytes[at..at + field.len()].copy_from_slice(field);
            at += field.len();
        };
        put(&flags.to_ne_bytes());
        // Reserved bytes, and the service ID.
        put(&[0; 12]);
        put(&self.dgid.0);
        put(&self.sgid.0);
        put(&self.dlid.to_be_bytes());
        put(&self.slid.to_be_bytes());
        put(&path.flowlabel_hoplimit.to_ne().to_be_bytes());
        put(&[path.tclass, path.reversible_numpath]);
        put(&self.pkey.to_be_bytes());
        put(&path.qosclass_sl.to_ne().to_be_bytes());
        put(&[path.mtu, path.rate, path.packetlifetime, path.preference]);
        bytes
    }

    /// Decodes a path in the representation of C programs.
    pub fn decode(bytes: &[u8; Self::SIZE]) -> Self {
        let mut rest = &bytes[16..];
        let mut take = |len| {
            let (field, after) = rest.split_at(len);
            rest = after;
            field
        };
        let mut gid = || Gid(take(16).try_into().unwrap_or_default());
        let (dgid, sgid) = (gid(), gid());
        let mut number = |len| {
            let add = |number: u32, byte: &u8| number << 8 | u32::from(*byte);
            take(len).iter().fold(0, add)
        };
        // The mask guarantees the range of the conversion.
        let short = |number: u32| u16::try_from(number & 0xffff).unwrap_or_default();
        let byte = |number: u32| u8::try_from(number & 0xff).unwrap_or_default();
        let (dlid, slid) = (short(number(2)), short(number(2)));
        let flow = number(4);
        let (traffic_class, reversible) = (byte(number(1)), number(1) & 0x80 != 0);
        let (pkey, sl) = (short(number(2)), byte(number(2) & 0xf));
        Self {
            dgid,
            sgid,
            dlid,
            slid,
            flow_label: flow >> 8 & 0x000f_ffff,
            hop_limit: byte(flow),
            traffic_class,
            reversible,
            pkey,
            sl,
            mtu_code: byte(number(1) & 0x3f),
            rate_code: byte(number(1) & 0x3f),
            packet_life_time: byte(number(1) & 0x3f),
            preference: byte(number(1)),
        }
    }

    pub(crate) fn from_raw(raw: &ffi::ibv_sa_path_rec) -> Self {
        Self {
            dgid: raw.dgid.into(),
            sgid: raw.sgid.into(),
            dlid: raw.dlid.to_ne(),
            slid: raw.slid.to_ne(),
            flow_label: raw.flow_label.to_ne(),
            hop_limit: raw.hop_limit,
            traffic_class: raw.traffic_class,
            reversible: raw.reversible != 0,
            pkey: raw.pkey.to_ne(),
            sl: raw.sl,
            mtu_code: raw.mtu,
            rate_code: raw.rate,
            packet_life_time: raw.packet_life_time,
            preference: raw.preference,
        }
    }

    /// The path for the kernel, in the wire format of InfiniBand.
    pub(crate) fn to_raw(self) -> ffi::ibv_path_data {
        let flow = (self.flow_label & 0x000f_ffff) << 8 | u32::from(self.hop_limit);
        let path = ffi::ibv_path_record {
            service_id: __be64::from_ne(0),
            dgid: self.dgid.into(),
            sgid: self.sgid.into(),
            dlid: __be16::from_ne(self.dlid),
            slid: __be16::from_ne(self.slid),
            flowlabel_hoplimit: __be32::from_ne(flow),
            tclass: self.traffic_class,
            reversible_numpath: u8::from(self.reversible) << 7 | 1,
            pkey: __be16::from_ne(self.pkey),
            qosclass_sl: __be16::from_ne(u16::from(self.sl & 0xf)),
            mtu: EXACTLY | self.mtu_code & 0x3f,
            rate: EXACTLY | self.rate_code & 0x3f,
            packetlifetime: EXACTLY | self.packet_life_time & 0x3f,
            preference: self.preference,
            reserved: [0; 6],
        };
        ffi::ibv_path_data {
            flags: ffi::IBV_PATH_FLAG_GMP
                | ffi::IBV_PATH_FLAG_PRIMARY
                | ffi::IBV_PATH_FLAG_BIDIRECTIONAL,
            reserved: 0,
            path,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn path_encoding_matches_infiniband() {
        let path = PathRecord {
            dgid: Gid([1; 16]),
            sgid: Gid([2; 16]),
            dlid: 0x0304,
            flow_label: 0xabcde,
            hop_limit: 0xf0,
            reversible: true,
            pkey: 0x8001,
            sl: 3,
            mtu_code: 4,
            rate_code: 3,
            packet_life_time: 18,
            ..PathRecord::default()
        };
        let raw = path.to_raw();
        assert_eq!(raw.flags, 0x2b);
        let ffi::ibv_path_record {
            dlid,
            flowlabel_hoplimit,
            qosclass_sl,
            ..
        } = raw.path;
        assert_eq!(dlid.0.to_ne_bytes(), [3, 4]);
        assert_eq!(flowlabel_hoplimit.0.to_ne_bytes(), [0x0a, 0xbc, 0xde, 0xf0]);
        assert_eq!(qosclass_sl.0.to_ne_bytes(), [0, 3]);
        assert_eq!(raw.path.reversible_numpath, 0x81);
        assert_eq!((raw.path.mtu, raw.path.rate), (0x84, 0x83));
        assert_eq!(raw.path.packetlifetime, 0x92);
        assert_eq!(path.mtu(), Mtu::B2048);
    }

    #[test]
    fn path_of_a_c_program_round_trips() {
        let path = PathRecord {
            dgid: Gid([1; 16]),
            sgid: Gid([2; 16]),
            dlid: 0x0304,
            slid: 0x0506,
            flow_label: 0x000a_bcde,
            hop_limit: 7,
            traffic_class: 8,
            reversible: true,
            pkey: 0xffff,
            sl: 9,
            mtu_code: 3,
            rate_code: 2,
            packet_life_time: 18,
            preference: 1,
        };
        let bytes = path.encode();
        assert_eq!(bytes[..4], 0x2b_u32.to_ne_bytes());
        assert_eq!(
            bytes[48..],
            [
                3, 4, 5, 6, 0x0a, 0xbc, 0xde, 7, 8, 0x81, 0xff, 0xff, 0, 9, 0x83, 0x82, 0x92, 1, 0,
                0, 0, 0, 0, 0
            ]
        );
        assert_eq!(PathRecord::decode(&bytes), path);
        let all = PathRecord::decode(&[0xff; PathRecord::SIZE]);
        assert_eq!(PathRecord::decode(&all.encode()), all);
    }
}
