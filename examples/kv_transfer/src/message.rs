//! Messages between readers and writers, immediate data, and the private data of the handshake.
//!
//! Every message has the same length and, on all machines, the same layout. Bytes without a field are zero.
//!
//! ```text
//! byte 0     1      2     3      4        8      12      16    24    32        128
//!      kind  group  lane  count  credits  lease  millis  tag   zero  pages
//!                                (u32)    (u32)  (u32)   (u64)       (24 u32)
//! ```

use anyhow::{Context as _, bail, ensure};
use verbs::RemoteToken;

use super::options::Options;

/// Length of every message, in bytes.
pub(crate) const MESSAGE_LEN: usize = 128;
/// Maximum number of pages of a lease: the entries of a message.
pub(crate) const MAX_PAGES: usize = 24;
/// Maximum number of groups of a lease; a group is the share of a queue pair.
pub(crate) const MAX_GROUPS: u8 = 4;
/// The highest number of a lease.
pub(crate) const MAX_LEASE: u32 = (1 << 20) - 1;

const MAGIC: [u8; 4] = *b"KVT1";
const PAGES_START: usize = 32;

/// A lease as granted by the reader.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Grant {
    pub(crate) lease: u32,
    /// Time until the deadline, in milliseconds.
    pub(crate) millis: u32,
    /// The program's name for the content.
    pub(crate) tag: u64,
    /// Numbers of the reader's pages.
    pub(crate) pages: Vec<u32>,
}

/// The pages of a lease written by one queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Share {
    pub(crate) lease: u32,
    pub(crate) group: u8,
    /// The queue pair that has failed.
    pub(crate) lane: u8,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Message {
    /// Reader: write these pages.
    Grant(Grant),
    /// Reader: write no more pages of this lease.
    Cancel(u32),
    /// Writer: no write of this lease is in flight, and none will follow.
    Released(u32),
    /// Writer: the queue pair has failed; end it, and report whether the group is in place.
    Lost(Share),
    /// Reader: the queue pair has ended; write the group again.
    Again(Share),
    /// Reader: the group is in place, or the lease has ended.
    InPlace(Share),
    /// Either: only credits.
    Credit,
}

impl Message {
    /// Encodes the message, with the number of receives posted again.
    pub(crate) fn to_wire(&self, credits: u32) -> [u8; MESSAGE_LEN] {
        let mut wire = [0; MESSAGE_LEN];
        wire[4..8].copy_from_slice(&credits.to_le_bytes());
        let mut put = |kind: u8, lease: u32| {
            wire[0] = kind;
            wire[8..12].copy_from_slice(&lease.to_le_bytes());
        };
        match self {
            Self::Grant(grant) => {
                put(1, grant.lease);
                wire[3] = u8::try_from(grant.pages.len()).expect("a grant has at most 24 pages");
                wire[12..16].copy_from_slice(&grant.millis.to_le_bytes());
                wire[16..24].copy_from_slice(&grant.tag.to_le_bytes());
                let entries = wire[PAGES_START..].chunks_exact_mut(4);
                for (entry, page) in entries.zip(&grant.pages) {
                    entry.copy_from_slice(&page.to_le_bytes());
                }
            }
            Self::Cancel(lease) => put(2, *lease),
            Self::Released(lease) => put(3, *lease),
            Self::Lost(share) | Self::Again(share) | Self::InPlace(share) => {
                let kind = match self {
                    Self::Lost(_) => 4,
                    Self::Again(_) => 5,
                    _ => 6,
                };
                put(kind, share.lease);
                (wire[1], wire[2]) = (share.group, share.lane);
            }
            Self::Credit => wire[0] = 7,
        }
        wire
    }

    /// Parses a message, and the number of receives posted again.
    ///
    /// # Errors
    /// A field is invalid; the error names the field.
    pub(crate) fn from_wire(wire: &[u8]) -> anyhow::Result<(Self, u32)> {
        let len = wire.len();
        let Ok(wire) = <&[u8; MESSAGE_LEN]>::try_from(wire) else {
            bail!("a message has {len} bytes instead of {MESSAGE_LEN}");
        };
        let [kind, group, lane, count] = *field(wire, 0)?;
        let credits = u32::from_le_bytes(*field(wire, 4)?);
        let lease = u32::from_le_bytes(*field(wire, 8)?);
        if kind != 7 {
            ensure!(
                (1..=MAX_LEASE).contains(&lease),
                "lease {lease} is not in 1..={MAX_LEASE}"
            );
        }
        let share = Share { lease, group, lane };
        let message = match kind {
            1 => Self::Grant(grant(wire, lease, usize::from(count))?),
            2 => Self::Cancel(lease),
            3 => Self::Released(lease),
            4 => Self::Lost(share),
            5 => Self::Again(share),
            6 => Self::InPlace(share),
            7 => Self::Credit,
            _ => bail!("{kind} is no kind of message"),
        };
        ensure!(
            group < MAX_GROUPS,
            "group {group} is above {}",
            MAX_GROUPS - 1
        );
        let lanes = Options::MAX_LANES;
        ensure!(
            usize::from(lane) < lanes,
            "queue pair {lane} is not below {lanes}"
        );
        // Also refuses fields that the kind does not have.
        ensure!(
            message.to_wire(credits) == *wire,
            "bytes without a field are not zero"
        );
        Ok((message, credits))
    }
}

fn grant(wire: &[u8; MESSAGE_LEN], lease: u32, count: usize) -> anyhow::Result<Grant> {
    ensure!(
        (1..=MAX_PAGES).contains(&count),
        "{count} pages are not in 1..={MAX_PAGES}"
    );
    let entries = wire[PAGES_START..].chunks_exact(4).take(count);
    let pages: Vec<u32> = entries
        .map(|entry| field(entry, 0).copied().map(u32::from_le_bytes))
        .collect::<anyhow::Result<_>>()?;
    for (index, page) in pages.iter().enumerate() {
        ensure!(
            !pages[..index].contains(page),
            "page {page} is granted twice"
        );
    }
    Ok(Grant {
        lease,
        millis: u32::from_le_bytes(*field(wire, 12)?),
        tag: u64::from_le_bytes(*field(wire, 16)?),
        pages,
    })
}

fn field<const N: usize>(wire: &[u8], start: usize) -> anyhow::Result<&[u8; N]> {
    let bytes = wire.get(start..).and_then(<[u8]>::first_chunk);
    bytes.with_context(|| format!("{} bytes are too few", wire.len()))
}

/// Immediate data: the lease (its counter), a group, and the number of pages in the group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Immediate {
    pub(crate) lease: u32,
    pub(crate) group: u8,
    pub(crate) pages: u8,
}

impl Immediate {
    pub(crate) fn to_wire(self) -> u32 {
        self.lease << 12 | u32::from(self.group) << 8 | u32::from(self.pages)
    }

    pub(crate) fn from_wire(number: u32) -> anyhow::Result<Self> {
        let [pages, group, ..] = (number & 0xfff).to_le_bytes();
        ensure!(
            group < MAX_GROUPS,
            "immediate {number:#x}: group {group} is above {}",
            MAX_GROUPS - 1
        );
        ensure!(pages > 0, "immediate {number:#x} counts no page");
        Ok(Self {
            lease: number >> 12,
            group,
            pages,
        })
    }
}

/// Private data of a writer's connection request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Hello {
    /// A number chosen by the writer, the same for all queue pairs to the reader.
    pub(crate) session: u64,
    pub(crate) lane: u8,
    pub(crate) lanes: u8,
}

impl Hello {
    pub(crate) fn to_wire(self) -> Vec<u8> {
        [
            &MAGIC[..],
            &self.session.to_le_bytes(),
            &[self.lane, self.lanes],
        ]
        .concat()
    }

    /// Parses the start of the private data: the connection manager may add zeros.
    pub(crate) fn from_wire(wire: &[u8]) -> anyhow::Result<Self> {
        ensure!(
            *field(wire, 0)? == MAGIC,
            "the peer speaks another protocol"
        );
        let session = u64::from_le_bytes(*field(wire, 4)?);
        let [lane, lanes] = *field(wire, 12)?;
        let max = Options::MAX_LANES;
        ensure!(
            (1..=max).contains(&lanes.into()),
            "{lanes} queue pairs are not in 1..={max}"
        );
        ensure!(lane < lanes, "queue pair {lane} is not below {lanes}");
        Ok(Self {
            session,
            lane,
            lanes,
        })
    }
}

/// Private data of a reader's answer: the reader's pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Welcome {
    pub(crate) token: RemoteToken,
    pub(crate) page_len: u32,
}

impl Welcome {
    pub(crate) fn to_wire(self) -> Vec<u8> {
        let RemoteToken { addr, len, rkey } = self.token;
        let (addr, len) = (addr.to_le_bytes(), len.to_le_bytes());
        [
            &MAGIC[..],
            &addr,
            &len,
            &rkey.to_le_bytes(),
            &self.page_len.to_le_bytes(),
        ]
        .concat()
    }

    pub(crate) fn from_wire(wire: &[u8]) -> anyhow::Result<Self> {
        ensure!(
            *field(wire, 0)? == MAGIC,
            "the peer speaks another protocol"
        );
        let token = RemoteToken {
            addr: u64::from_le_bytes(*field(wire, 4)?),
            len: u64::from_le_bytes(*field(wire, 12)?),
            rkey: u32::from_le_bytes(*field(wire, 20)?),
        };
        let page_len = u32::from_le_bytes(*field(wire, 24)?);
        ensure!(page_len > 0, "the peer's pages have no bytes");
        let len = token.len;
        ensure!(
            len > 0 && len.is_multiple_of(page_len.into()),
            "{len} bytes are no pages of {page_len}"
        );
        Ok(Self { token, page_len })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn grant() -> Message {
        Message::Grant(Grant {
            lease: 5,
            millis: 7,
            tag: 9,
            pages: vec![3, 0, u32::MAX],
        })
    }

    #[test]
    fn every_message_round_trips() {
        let share = Share {
            lease: MAX_LEASE,
            group: 3,
            lane: 1,
        };
        for message in [
            grant(),
            Message::Cancel(1),
            Message::Released(2),
            Message::Lost(share),
            Message::Again(share),
            Message::InPlace(share),
            Message::Credit,
        ] {
            let read = Message::from_wire(&message.to_wire(17)).unwrap();
            assert_eq!(read, (message, 17));
        }
    }

    #[test]
    fn from_wire_names_each_bad_field() {
        let refusal = |message: &Message, index: usize, bytes: &[u8]| {
            let mut wire = message.to_wire(0);
            wire[index..index + bytes.len()].copy_from_slice(bytes);
            Message::from_wire(&wire).unwrap_err().to_string()
        };
        let cancel = &Message::Cancel(1);
        assert_eq!(refusal(cancel, 0, &[0]), "0 is no kind of message");
        assert_eq!(refusal(cancel, 0, &[8]), "8 is no kind of message");
        assert_eq!(refusal(cancel, 1, &[4]), "group 4 is above 3");
        assert_eq!(refusal(cancel, 2, &[4]), "queue pair 4 is not below 4");
        assert_eq!(refusal(cancel, 8, &[0]), "lease 0 is not in 1..=1048575");
        assert_eq!(
            refusal(cancel, 8, &[0xff; 4]),
            "lease 4294967295 is not in 1..=1048575"
        );
        for index in [1, 2, 3, 12, 16, 24, 32, MESSAGE_LEN - 1] {
            assert_eq!(
                refusal(cancel, index, &[1]),
                "bytes without a field are not zero"
            );
        }
        assert_eq!(refusal(&grant(), 3, &[0]), "0 pages are not in 1..=24");
        assert_eq!(refusal(&grant(), 3, &[25]), "25 pages are not in 1..=24");
        assert_eq!(refusal(&grant(), 3, &[4]), "page 0 is granted twice");
        assert_eq!(
            refusal(&grant(), 44, &[1]),
            "bytes without a field are not zero"
        );
        let short = Message::from_wire(&grant().to_wire(0)[1..]).unwrap_err();
        assert_eq!(short.to_string(), "a message has 127 bytes instead of 128");
    }

    #[test]
    fn immediate_round_trips_and_names_bad_fields() {
        let immediate = Immediate {
            lease: MAX_LEASE,
            group: 3,
            pages: 24,
        };
        assert_eq!(
            Immediate::from_wire(immediate.to_wire()).unwrap(),
            immediate
        );
        assert!(
            Immediate::from_wire(0x1401)
                .unwrap_err()
                .to_string()
                .contains("group 4")
        );
        assert!(
            Immediate::from_wire(0x1000)
                .unwrap_err()
                .to_string()
                .contains("no page")
        );
    }

    #[test]
    fn private_data_round_trips_and_names_bad_fields() {
        let hello = Hello {
            session: u64::MAX - 1,
            lane: 1,
            lanes: 2,
        };
        let padded = [hello.to_wire(), vec![0; 8]].concat();
        assert_eq!(Hello::from_wire(&padded).unwrap(), hello);
        for (lane, lanes) in [(0, 0), (0, 5), (2, 2), (255, 255)] {
            assert!(
                Hello::from_wire(
                    &Hello {
                        lane,
                        lanes,
                        ..hello
                    }
                    .to_wire()
                )
                .is_err()
            );
        }
        let token = RemoteToken {
            addr: 1 << 40,
            len: 8192,
            rkey: 3,
        };
        let welcome = Welcome {
            token,
            page_len: 4096,
        };
        assert_eq!(Welcome::from_wire(&welcome.to_wire()).unwrap(), welcome);
        for page_len in [0, 4095, 16384] {
            assert!(
                Welcome::from_wire(
                    &Welcome {
                        page_len,
                        ..welcome
                    }
                    .to_wire()
                )
                .is_err()
            );
        }
        for end in 0..14 {
            assert!(Hello::from_wire(&hello.to_wire()[..end]).is_err());
            assert!(Welcome::from_wire(&welcome.to_wire()[..2 * end]).is_err());
        }
        assert!(Hello::from_wire(&[7; 14]).is_err());
    }
}
