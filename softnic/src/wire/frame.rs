//! A whole frame, from the first byte of the IP header to the last byte of the ICRC.

use super::{
    bth::Bth,
    error::WireError,
    extensions::Extensions,
    icrc::{self, icrc},
    ip::IpHeader,
    reader::Reader,
    udp::{self, Udp},
};

/// A frame: headers, and a borrowed payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame<'a> {
    /// The IP header.
    pub ip: IpHeader,
    /// UDP source port; the same for all frames of a connection, so that routers keep the order.
    pub src_port: u16,
    /// UDP checksum as sent; 0 means none. The checksum is neither computed nor verified.
    pub udp_checksum: u16,
    /// The base transport header.
    pub bth: Bth,
    /// The extension headers.
    pub extensions: Extensions,
    /// The payload without its padding.
    pub payload: &'a [u8],
}

impl<'a> Frame<'a> {
    /// Decodes an IP packet. Bytes after the packet, such as Ethernet's padding, are ignored.
    ///
    /// # Errors
    /// - [`WireError`]: the bytes are no frame, or were corrupted in transit; drop them.
    pub fn decode(bytes: &'a [u8]) -> Result<Self, WireError> {
        Self::parse(bytes, |ip, covered, sent| match icrc(ip, covered) {
            computed if computed == sent => Ok(()),
            computed => Err(WireError::Icrc(computed)),
        })
    }

    /// Decodes an IP packet whose ICRC has been checked.
    ///
    /// # Errors
    /// As for [`decode`](Self::decode).
    pub(crate) fn decode_checked(bytes: &'a [u8]) -> Result<Self, WireError> {
        Self::parse(bytes, |_, _, _| Ok(()))
    }

    /// Decodes an IP packet. `check` has the covered bytes and the ICRC in the packet.
    fn parse(
        bytes: &'a [u8],
        check: impl FnOnce(&IpHeader, &[u8], u32) -> Result<(), WireError>,
    ) -> Result<Self, WireError> {
        let mut reader = Reader::new(bytes);
        let ip = IpHeader::decode(&mut reader)?;
        let packet = reader.rest();
        let udp = Udp::decode(&mut reader)?;
        if usize::from(udp.len) != packet.len() {
            return Err(WireError::Length);
        }
        let (bth, pad) = Bth::decode(&mut reader)?;
        let extensions = Extensions::decode(bth.opcode, &mut reader)?;
        let (padded, sent) = reader
            .rest()
            .split_last_chunk::<{ icrc::LEN }>()
            .ok_or(WireError::Truncated("ICRC"))?;
        let covered = ip.encoded_len() + packet.len() - icrc::LEN;
        check(&ip, &bytes[..covered], u32::from_le_bytes(*sent))?;
        let len = padded.len().checked_sub(pad.into());
        let len = len.ok_or(WireError::Pad(pad))?;
        Ok(Self {
            ip,
            src_port: udp.src_port,
            udp_checksum: udp.checksum,
            bth,
            extensions,
            payload: &padded[..len],
        })
    }

    /// Appends the frame to `to`.
    ///
    /// # Errors
    /// - [`WireError::Headers`], [`WireError::Opcode`]: the extension headers do not match the opcode.
    /// - [`WireError::Payload`]: the payload exceeds a UDP datagram.
    pub fn encode(&self, to: &mut Vec<u8>) -> Result<(), WireError> {
        self.encode_with(self.payload.len(), to, |out| {
            out.copy_from_slice(self.payload);
        })
    }

    /// Appends the frame to `to` with a payload of `len` bytes, written in place by `fill`. [`payload`](Self::payload)
    /// is ignored.
    ///
    /// # Errors
    /// As for [`encode`](Self::encode); `to` is then unchanged.
    pub fn encode_with(
        &self,
        len: usize,
        to: &mut Vec<u8>,
        fill: impl FnOnce(&mut [u8]),
    ) -> Result<(), WireError> {
        let start = to.len();
        let done = self.append(start, len, to, fill);
        if done.is_err() {
            to.truncate(start);
        }
        done
    }

    fn append(
        &self,
        start: usize,
        len: usize,
        to: &mut Vec<u8>,
        fill: impl FnOnce(&mut [u8]),
    ) -> Result<(), WireError> {
        let padded = self.encode_headers(len, to)?;
        let payload = to.len();
        to.resize(payload + padded, 0);
        fill(&mut to[payload..payload + len]);
        let icrc = icrc(&self.ip, &to[start..]);
        to.extend(icrc.to_le_bytes());
        Ok(())
    }

    /// Length of the IP packet with a payload of `len` bytes.
    pub(crate) fn len_with(&self, len: usize) -> usize {
        let transport = Bth::LEN + self.extensions.encoded_len();
        self.ip.encoded_len() + udp::LEN + transport + len.next_multiple_of(4) + icrc::LEN
    }

    /// Appends the headers of a frame with a payload of `len` bytes, and returns the length of the payload with its
    /// padding.
    pub(crate) fn encode_headers(&self, len: usize, to: &mut Vec<u8>) -> Result<usize, WireError> {
        let start = to.len();
        let padded = len.next_multiple_of(4);
        let [pad, ..] = (padded - len).to_le_bytes();
        let too_long = WireError::Payload(len);
        let udp_len = self.len_with(len) - self.ip.encoded_len();
        let udp_len = u16::try_from(udp_len).map_err(|_| too_long)?;
        self.ip.encode(udp_len, to).ok_or(too_long)?;
        let udp = Udp {
            src_port: self.src_port,
            len: udp_len,
            checksum: self.udp_checksum,
        };
        udp.encode(to);
        self.bth.encode(pad, to);
        self.extensions.encode(self.bth.opcode, to)?;
        debug_assert_eq!(to.len() - start + padded + icrc::LEN, self.len_with(len));
        Ok(padded)
    }
}
