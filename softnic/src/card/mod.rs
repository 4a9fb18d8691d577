//! Cards: limits of real devices with their drivers, and the roundings of these drivers.
//!
//! [`table`] has a row for each card, with the source of each number. [`sizing`] computes the capacity of a queue as the driver
//! does. A value that no source gives is that of a device without a card; inline data without a source has no limit.

#![forbid(unsafe_code)]

mod sizing;
mod table;

pub(crate) use sizing::{QueueRequest, SendOperations};
pub(crate) use table::{Atomics, SharedReceives, Specification};

use crate::by_name::parsed_by_name;

macro_rules! cards {
    ($($(#[doc = $doc:literal])* $variant:ident $name:literal $driver:literal $row:ident,)*) => {
        /// A card with its driver, for [`Fabric::card`](crate::Fabric::card).
        ///
        /// The device reports the card's attributes, grants the capacities that its driver grants, and refuses the requests and
        /// combinations that its driver refuses, with the driver's error numbers. Each number has a source in
        /// `softnic/src/card/table.rs`; an attribute without a source is softnic's own, and inline data without a source has no
        /// limit. The transport is `RoCEv2`, also for
        /// cards of another one.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[non_exhaustive]
        pub enum Card {
            $(
                $(#[doc = $doc])*
                ///
                #[doc = concat!("Name: `", $name, "`. Driver: ", $driver, ".")]
                $variant,
            )*
        }

        impl Card {
            /// All cards.
            pub const ALL: &[Self] = &[$(Self::$variant,)*];

            /// Name of the card, as in the environment variable `SOFTNIC_CARD`.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $name,)*
                }
            }

            /// Driver and firmware with the card's attributes and roundings.
            pub const fn driver(self) -> &'static str {
                match self {
                    $(Self::$variant => $driver,)*
                }
            }

            /// The card's row of the table.
            pub(crate) const fn specification(self) -> &'static Specification {
                match self {
                    $(Self::$variant => &table::$row,)*
                }
            }
        }
    };
}

cards! {
    /// NVIDIA ConnectX-3.
    ConnectX3 "connectx-3" "mlx4 of rdma-core 65, firmware 2.33" CONNECTX_3,
    /// NVIDIA ConnectX-5.
    ConnectX5 "connectx-5" "mlx5 of rdma-core 65, firmware 16.27" CONNECTX_5,
    /// NVIDIA ConnectX-6.
    ConnectX6 "connectx-6" "mlx5 of rdma-core 65, firmware 20.29" CONNECTX_6,
    /// NVIDIA ConnectX-6 Lx.
    ConnectX6Lx "connectx-6-lx" "mlx5 of rdma-core 65" CONNECTX_6_LX,
    /// Intel E810.
    E810 "e810" "irdma of Linux 6.12 and rdma-core 65" E810,
    /// Intel E810 with another driver.
    E810Fw174 "e810-1.74" "irdma with firmware 1.74, provider of rdma-core 65" E810_FW_1_74,
    /// Intel X722.
    X722 "x722" "irdma of Linux 6.12 and rdma-core 65" X722,
    /// Chelsio T6.
    T6 "t6" "cxgb4 of Linux 6.12" T6,
    /// Broadcom P5 devices with variable requests.
    BnxtP5 "bnxt-p5" "bnxt_re of Linux 6.12 and rdma-core 65" BNXT_P5,
    /// Marvell `FastLinQ` QL41000.
    Ql41000 "ql41000" "qedr, firmware 8.37" QL41000,
    /// Amazon EFA of the second generation (0xefa1), without its own transport SRD.
    Efa "efa" "efa of rdma-core 65" EFA,
    /// Alibaba ERDMA.
    Erdma "erdma" "erdma of Linux 6.12 and rdma-core 65" ERDMA,
    /// Linux' Soft-RoCE.
    Rxe "rxe" "rxe of Linux 6.12" RXE,
    /// Linux' software iWARP.
    Siw "siw" "siw of Linux 6.12" SIW,
}

parsed_by_name!(Card, UnknownCard, "card");

impl Card {
    /// Whether the card has atomics. Without a source, as a device without a card.
    pub(crate) fn has_atomics(self) -> bool {
        self.specification().atomics != Some(Atomics::None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_cards_are_parsed() {
        for card in Card::ALL {
            assert_eq!(card.name().parse(), Ok(*card));
        }
        let error = "connectx-9".parse::<Card>().unwrap_err().to_string();
        let expected = "no card is named `connectx-9`: use one of connectx-3, connectx-5, ";
        assert!(error.starts_with(expected), "{error}");
    }
}
