//! Enums whose values have names, as in environment variables and options.

/// Implements `Display` and `FromStr` of an enum by its `name` and `ALL`, and defines the error of a name that no value has.
macro_rules! parsed_by_name {
    ($named:ident, $unknown:ident, $noun:literal) => {
        impl std::fmt::Display for $named {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(self.name())
            }
        }

        #[doc = concat!("Error of the conversion from a text to a [`", stringify!($named), "`]: no ", $noun, " has the name.")]
        #[derive(Clone, PartialEq, Eq)]
        pub struct $unknown(String);

        impl std::fmt::Display for $unknown {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                let names: Vec<_> = $named::ALL.iter().map(|value| value.name()).collect();
                let (name, names) = (&self.0, names.join(", "));
                write!(f, concat!("no ", $noun, " is named `{}`: use one of {}"), name, names)
            }
        }

        /// Formats as [`Display`](std::fmt::Display), so that `unwrap` prints the remedy.
        impl std::fmt::Debug for $unknown {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                std::fmt::Display::fmt(self, f)
            }
        }

        impl std::error::Error for $unknown {}

        impl std::str::FromStr for $named {
            type Err = $unknown;

            fn from_str(text: &str) -> Result<Self, $unknown> {
                let found = Self::ALL.iter().find(|value| value.name() == text);
                found.copied().ok_or_else(|| $unknown(text.to_owned()))
            }
        }
    };
}
pub(crate) use parsed_by_name;
