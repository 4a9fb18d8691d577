//! A transport of a vendor has no requests without an address.

use verbs::qp::{Connected, Partitioned, Routed, VendorTransport};

struct Vendors<V>(V);

impl<V> Partitioned for Vendors<V> where Vendors<V>: VendorTransport {}
impl<V> Routed for Vendors<V> where Vendors<V>: VendorTransport {}
impl<V> Connected for Vendors<V> where Vendors<V>: VendorTransport {}

fn main() {}
