//! A fair queue: owners take turns.

use std::collections::{HashMap, VecDeque};

/// Bounded queues of several owners, from which the next item is that of the owner whose turn it is: each has one item
/// to a turn, those of one in their order. So an owner with thousands of items delays another by one of each turn.
///
/// **Bounds.** An owner may bring more while it has fewer items than there are places left of `2 * max`: one alone has
/// `max` at most, of several each has less, and who has many brings no more until others had their part (the dynamic
/// thresholds by which switches share their memory, Choudhury and Hahne 1998).
#[derive(Debug)]
pub struct FairQueue<T> {
    queues: HashMap<u64, VecDeque<T>>,
    /// Owners with items, in the order of their turns.
    next: VecDeque<u64>,
    len: usize,
    max: usize,
}

impl<T> FairQueue<T> {
    /// An empty queue with places for `max` items of one owner alone.
    pub fn new(max: usize) -> Self {
        Self { queues: HashMap::new(), next: VecDeque::new(), len: 0, max }
    }

    /// Items of all owners.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether no owner has an item.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Whether an owner may bring one more.
    pub fn admits(&self, owner: u64) -> bool {
        let own = self.queues.get(&owner).map_or(0, VecDeque::len);
        own < self.max.saturating_mul(2).saturating_sub(self.len)
    }

    /// Appends an item.
    ///
    /// # Errors
    ///
    /// Gives the item back where the owner has no place.
    pub fn push(&mut self, owner: u64, item: T) -> Result<(), T> {
        if !self.admits(owner) {
            return Err(item);
        }
        let queue = self.queues.entry(owner).or_default();
        if queue.is_empty() {
            self.next.push_back(owner);
        }
        queue.push_back(item);
        self.len += 1;
        Ok(())
    }

    /// Takes the next item.
    pub fn pop(&mut self) -> Option<T> {
        let owner = self.next.pop_front()?;
        let queue = self.queues.get_mut(&owner)?;
        let item = queue.pop_front()?;
        self.len -= 1;
        if queue.is_empty() {
            self.queues.remove(&owner);
        } else {
            self.next.push_back(owner);
        }
        Some(item)
    }

    /// Takes out everything of an owner.
    pub fn remove(&mut self, owner: u64) -> VecDeque<T> {
        let Some(queue) = self.queues.remove(&owner) else { return VecDeque::new() };
        self.next.retain(|next| *next != owner);
        self.len -= queue.len();
        queue
    }

    /// Takes out everything.
    pub fn drain(&mut self) -> impl Iterator<Item = T> + use<'_, T> {
        std::iter::from_fn(|| self.pop())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filled(max: usize, items: &[(u64, u32)]) -> FairQueue<u32> {
        let mut turns = FairQueue::new(max);
        items.iter().for_each(|(owner, item)| turns.push(*owner, *item).unwrap());
        turns
    }

    #[test]
    fn owners_take_turns_and_keep_the_order_of_their_own() {
        let mut turns = filled(9, &[(1, 10), (1, 11), (1, 12), (2, 20), (3, 30), (3, 31)]);
        assert_eq!(turns.drain().collect::<Vec<_>>(), [10, 20, 30, 11, 31, 12]);
        assert!(turns.is_empty() && turns.queues.is_empty() && turns.next.is_empty());
    }

    #[test]
    fn an_owner_that_fills_the_queue_keeps_no_other_out() {
        let mut turns = FairQueue::new(8);
        let brought =
            |turns: &mut FairQueue<u32>, owner| (0..99).take_while(|_| turns.push(owner, 0).is_ok()).count();
        assert_eq!([1, 2, 3, 4].map(|owner| brought(&mut turns, owner)), [8, 4, 2, 1]);
        for _ in 0..9 {
            turns.pop();
        }
        // As places become free they go to who has few.
        assert_eq!([1, 9].map(|owner| brought(&mut turns, owner)), [3, 4]);
        let all: usize = (10..99).map(|owner| brought(&mut turns, owner)).sum();
        assert!(turns.len() == 16 && all > 0, "{}", turns.len());
    }

    #[test]
    fn what_an_owner_has_is_taken_out_and_others_keep_their_turns() {
        let mut turns = filled(9, &[(1, 10), (2, 20), (1, 11), (3, 30)]);
        assert_eq!(turns.remove(1), [10, 11]);
        assert_eq!(turns.remove(1), []);
        assert_eq!((turns.pop(), turns.pop(), turns.pop(), turns.len()), (Some(20), Some(30), None, 0));
    }
}
