//! The offers of a process, and the streams that came for them.

#![forbid(unsafe_code)]

use std::collections::BTreeMap;

use super::frame::{Ends, Proof, Secret};

/// An offer, until its stream is taken or the offer is withdrawn.
#[derive(Debug)]
struct Offer<T, S> {
    ends: Ends,
    tcp: T,
    stream: Option<S>,
}

/// Offers by secret. `T` is the TCP connection, `S` the RDMA stream.
#[derive(Debug)]
pub(crate) struct Offers<T, S>(BTreeMap<Secret, Offer<T, S>>);

impl<T, S> Default for Offers<T, S> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

impl<T, S> Offers<T, S> {
    /// Adds an offer. A secret is never used twice.
    pub(crate) fn make(&mut self, secret: Secret, ends: Ends, tcp: T) {
        let stream = None;
        self.0.insert(secret, Offer { ends, tcp, stream });
    }

    /// Gives an RDMA stream to the offer with this secret and these ends. Returns the TCP connection to confirm the
    /// stream on, or the stream if there is no such offer, or the offer has a stream.
    pub(crate) fn prove(&mut self, proof: &Proof, stream: S) -> Result<&T, S> {
        match self.0.get_mut(&proof.secret) {
            Some(offer) if offer.ends == proof.ends && offer.stream.is_none() => {
                offer.stream = Some(stream);
                Ok(&offer.tcp)
            }
            _ => Err(stream),
        }
    }

    /// Whether an offer has its stream, and the peer has been notified.
    pub(crate) fn is_confirmed(&self, secret: &Secret) -> bool {
        let offer = self.0.get(secret);
        offer.is_some_and(|offer| offer.stream.is_some())
    }

    /// Returns the TCP connection of an offer.
    pub(crate) fn connection(&self, secret: &Secret) -> Option<&T> {
        Some(&self.0.get(secret)?.tcp)
    }

    /// Removes an offer. Returns its stream; without one, the offer is withdrawn, and no stream can come for it.
    pub(crate) fn take(&mut self, secret: &Secret) -> Option<S> {
        self.0.remove(secret)?.stream
    }
}
