//! Buffers of a pool kept by one thread.

use super::{pool::BufPool, pool_buf::PoolBuf};

/// A store of a [`BufPool`]'s buffers for one owner.
///
/// Taking a buffer from the store and putting it back need no locked instruction, in contrast to taking a buffer from the
/// pool and dropping it. An empty store takes from the pool, and a full one returns buffers to the pool; its
/// drop returns all.
///
/// # Examples
/// ```
/// # let (_peer, mut qp, mut cq) = doctest::connected();
/// use verbs::op;
/// let mut pool = qp.pd().alloc_pool(64, 4096)?.local(16);
/// let mut buf = pool.try_take().expect("none is out yet");
/// # let _ = &mut buf;
/// pool.put(buf); // in place of its drop
/// assert_eq!(pool.stored(), 1);
/// # Ok::<(), verbs::Error>(())
/// ```
#[derive(Debug)]
pub struct LocalPool {
    pool: BufPool,
    stored: Vec<PoolBuf>,
    capacity: usize,
}

impl BufPool {
    /// A store of at most `capacity` buffers of this pool. Allocates once, here.
    ///
    /// Buffers in the store are missing in the pool: choose the capacity so that all stores of the pool leave enough for
    /// the others.
    pub fn local(&self, capacity: usize) -> LocalPool {
        let capacity = capacity.min(self.count());
        LocalPool {
            pool: self.clone(),
            stored: Vec::with_capacity(capacity),
            capacity,
        }
    }
}

impl LocalPool {
    /// Takes a buffer, of full length: from the store, else from the pool. `None` if both are empty. Does not block.
    ///
    /// The content is that of the last owner.
    #[inline]
    pub fn try_take(&mut self) -> Option<PoolBuf> {
        match self.stored.pop() {
            Some(mut buf) => {
                buf.set_full();
                Some(buf)
            }
            None => self.pool.try_take(),
        }
    }

    /// Stores a buffer for the next [`try_take`](Self::try_take). A buffer of another pool, or beyond the capacity,
    /// returns to its pool.
    #[inline]
    pub fn put(&mut self, buf: PoolBuf) {
        if self.stored.len() < self.capacity && self.pool.is_pool_of(&buf) {
            self.stored.push(buf);
        }
    }

    /// The number of buffers in the store.
    pub fn stored(&self) -> usize {
        self.stored.len()
    }

    /// Maximum number of buffers in the store.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// The pool.
    pub fn pool(&self) -> &BufPool {
        &self.pool
    }
}
