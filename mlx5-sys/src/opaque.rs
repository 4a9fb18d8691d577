//! Structs of other requests than those of the dynamically connected transport, behind pointers.

macro_rules! opaque {
    ($($name:ident)*) => {$(
        /// A struct of C that only pointers name.
        #[repr(C)]
        #[derive(Debug)]
        pub struct $name {
            _private: [u8; 0],
        }
    )*};
}

opaque! {
    mlx5dv_mkey mlx5dv_mr_interleaved mlx5dv_mkey_conf_attr mlx5dv_sig_block_attr mlx5dv_crypto_attr
}
