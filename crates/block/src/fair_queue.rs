//! A fair queue: owners and their groups take turns.

use std::collections::VecDeque;

use crate::owner::OwnerKey;

/// Bounded queues of several owners, from which the next item is that of the owner whose turn it is.
///
/// **Turns** are taken at each level of an [`OwnerKey`]: by the outer groups, in each by its inner groups, and in each
/// of these by its owners; the items of an owner keep their order. So an owner with thousands of items delays another
/// by one of each turn, and a host with sixty sessions delays another host by one as well.
///
/// **Bounds.** One may bring more while it has fewer items than there are places left where it stands: an owner of the
/// `2 * max` of its inner group, an inner group of the `4 * max` of its outer one, an outer group of the `8 * max` of
/// all. One owner alone has `max` at most, of several each has less, and who has many brings no more until others had
/// their part (the dynamic thresholds by which switches share their memory, Choudhury and Hahne 1998).
#[derive(Debug)]
pub struct FairQueue<T> {
    all: Node<T>,
    max: usize,
}

/// An owner with its items, or a group with its members.
#[derive(Debug)]
struct Node<T> {
    /// Items of all members.
    len: usize,
    /// Of an owner.
    items: VecDeque<T>,
    /// Of a group: those that have items, in the order of their turns. Searched from the front: they are the sessions
    /// of one host that wait for one device, or hosts that do.
    members: VecDeque<(u64, Node<T>)>,
}

impl<T> Node<T> {
    fn new() -> Self {
        Self { len: 0, items: VecDeque::new(), members: VecDeque::new() }
    }

    fn position(&self, id: u64) -> Option<usize> {
        self.members.iter().position(|(member, _)| *member == id)
    }

    fn push(&mut self, path: &[u64], item: T) {
        self.len += 1;
        let Some((id, path)) = path.split_first() else { return self.items.push_back(item) };
        let index = self.position(*id).unwrap_or_else(|| {
            self.members.push_back((*id, Self::new()));
            self.members.len() - 1
        });
        self.members[index].1.push(path, item);
    }

    /// Takes the first item that `may_go` of the owners' oldest ones. Members that are passed over keep their places,
    /// so that theirs is the next turn once they may.
    fn pop_where(&mut self, may_go: &mut impl FnMut(&T) -> bool) -> Option<T> {
        let mut popped = None;
        for index in 0..self.members.len() {
            popped = self.members[index].1.pop_where(may_go);
            if popped.is_some() {
                let member = self.members.remove(index);
                self.members.extend(member.filter(|(_, member)| member.len > 0));
                break;
            }
        }
        if popped.is_none() && self.items.front().is_some_and(may_go) {
            popped = self.items.pop_front();
        }
        self.len -= usize::from(popped.is_some());
        popped
    }

    fn has_where(&self, may_go: &mut impl FnMut(&T) -> bool) -> bool {
        self.items.front().is_some_and(&mut *may_go)
            || self.members.iter().any(|(_, member)| member.has_where(may_go))
    }

    fn take(&mut self, path: &[u64], is_meant: &mut dyn FnMut(&T) -> bool) -> Option<T> {
        let taken = match path.split_first() {
            None => {
                let index = self.items.iter().position(is_meant)?;
                self.items.remove(index)
            }
            Some((id, path)) => {
                let index = self.position(*id)?;
                let member = &mut self.members[index].1;
                let taken = member.take(path, is_meant);
                if member.len == 0 {
                    self.members.remove(index);
                }
                taken
            }
        };
        self.len -= usize::from(taken.is_some());
        taken
    }

    fn remove(&mut self, path: &[u64]) -> VecDeque<T> {
        let removed = match path.split_first() {
            None => std::mem::take(&mut self.items),
            Some((id, path)) => {
                let Some(index) = self.position(*id) else { return VecDeque::new() };
                let member = &mut self.members[index].1;
                let removed = member.remove(path);
                if member.len == 0 {
                    self.members.remove(index);
                }
                removed
            }
        };
        self.len -= removed.len();
        removed
    }
}

impl<T> FairQueue<T> {
    /// Factor by which each level has less room than the one around it.
    const NARROWING: usize = 2;

    /// An empty queue with places for `max` items of one owner alone.
    pub fn new(max: usize) -> Self {
        Self { all: Node::new(), max }
    }

    /// Items of all owners.
    pub fn len(&self) -> usize {
        self.all.len
    }

    /// Returns `true` if no owner has an item.
    pub fn is_empty(&self) -> bool {
        self.all.len == 0
    }

    /// Tells whether an owner may add another item.
    pub fn admits(&self, owner: OwnerKey) -> bool {
        let (mut around, mut room) = (Some(&self.all), self.max);
        for _ in 0..OwnerKey::LEVELS {
            room = room.saturating_mul(Self::NARROWING);
        }
        owner.0.iter().all(|id| {
            let taken = around.map_or(0, |node| node.len);
            around = around.and_then(|node| node.position(*id).map(|index| &node.members[index].1));
            let free = room.saturating_sub(taken);
            room /= Self::NARROWING;
            around.map_or(0, |node| node.len) < free
        })
    }

    /// Appends an item.
    ///
    /// # Errors
    ///
    /// Gives the item back where the owner has no place.
    pub fn push(&mut self, owner: OwnerKey, item: T) -> Result<(), T> {
        if !self.admits(owner) {
            return Err(item);
        }
        self.all.push(&owner.0, item);
        Ok(())
    }

    /// Takes the next item.
    pub fn pop(&mut self) -> Option<T> {
        self.all.pop_where(&mut |_| true)
    }

    /// Takes the next item that `may_go`, of each owner's oldest one. Who is passed over keeps the turn: it is the next
    /// of those who may go.
    pub fn pop_where(&mut self, mut may_go: impl FnMut(&T) -> bool) -> Option<T> {
        self.all.pop_where(&mut may_go)
    }

    /// Tells whether [`pop_where`](Self::pop_where) would take an item.
    pub fn has_where(&self, mut may_go: impl FnMut(&T) -> bool) -> bool {
        self.all.has_where(&mut may_go)
    }

    /// Takes out everything of an owner.
    pub fn remove(&mut self, owner: OwnerKey) -> VecDeque<T> {
        self.all.remove(&owner.0)
    }

    /// Takes out the oldest item of an owner that `is_meant`.
    pub fn take(&mut self, owner: OwnerKey, mut is_meant: impl FnMut(&T) -> bool) -> Option<T> {
        self.all.take(&owner.0, &mut is_meant)
    }

    /// Takes out everything.
    pub fn drain(&mut self) -> impl Iterator<Item = T> + use<'_, T> {
        std::iter::from_fn(|| self.pop())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An owner in a group of its own.
    fn alone(id: u64) -> OwnerKey {
        OwnerKey([id; OwnerKey::LEVELS])
    }

    fn filled(max: usize, items: &[(OwnerKey, u32)]) -> FairQueue<u32> {
        let mut turns = FairQueue::new(max);
        items.iter().for_each(|(owner, item)| turns.push(*owner, *item).unwrap());
        turns
    }

    fn brought(turns: &mut FairQueue<u32>, owner: OwnerKey, item: u32) -> usize {
        (0..999).take_while(|_| turns.push(owner, item).is_ok()).count()
    }

    #[test]
    fn owners_take_turns_and_keep_the_order_of_their_own() {
        let items = [(1, 10), (1, 11), (1, 12), (2, 20), (3, 30), (3, 31)];
        let mut turns = filled(9, &items.map(|(owner, item)| (alone(owner), item)));
        assert_eq!(turns.drain().collect::<Vec<_>>(), [10, 20, 30, 11, 31, 12]);
        assert!(turns.is_empty() && turns.all.members.is_empty());
    }

    /// A principal with a host of 64 sessions and one of one, beside a principal with one session: items taken of each
    /// of the three.
    #[test]
    fn a_host_with_64_sessions_has_no_more_turns_than_a_neighbour_with_one() {
        let [many, few, other] = [0, 1, 2];
        let mut turns = FairQueue::new(256);
        for session in 100..164 {
            for _ in 0..4 {
                turns.push(OwnerKey([1, 10, session]), many).unwrap();
            }
        }
        for _ in 0..32 {
            turns.push(OwnerKey([1, 11, 200]), few).unwrap();
            turns.push(OwnerKey([2, 20, 300]), other).unwrap();
        }
        let mut taken = [0; 3];
        (0..64).for_each(|_| taken[turns.pop().unwrap() as usize] += 1);
        assert_eq!(
            taken,
            [16, 16, 32],
            "of 64 turns: 64 sessions, the host beside them, the other principal"
        );
    }

    #[test]
    fn who_may_not_go_is_passed_over_and_has_the_next_turn_when_it_may() {
        let items = [(1, 10), (1, 11), (2, 20), (3, 30), (3, 31), (2, 21)];
        let mut turns = filled(9, &items.map(|(owner, item)| (alone(owner), item)));
        let others = |item: &u32| item / 10 != 1;
        assert!(
            turns.has_where(others) && !turns.has_where(|item| *item == 11),
            "the oldest of each decides"
        );
        assert_eq!([(); 2].map(|()| turns.pop_where(others)), [Some(20), Some(30)]);
        assert_eq!([(); 3].map(|()| turns.pop()), [Some(10), Some(21), Some(31)]);
        assert_eq!((turns.pop_where(others), turns.len(), turns.pop()), (None, 1, Some(11)));
        assert!(turns.all.members.is_empty());
    }

    #[test]
    fn an_owner_or_a_group_that_fills_the_queue_keeps_no_other_out() {
        let mut turns = FairQueue::new(8);
        // Sessions of one host, then another host of the principal, then another principal.
        let of_host: Vec<_> = (1..99).map(|id| brought(&mut turns, OwnerKey([1, 1, id]), 0)).collect();
        assert_eq!(of_host[..4], [8, 4, 2, 1]);
        assert_eq!(of_host.iter().sum::<usize>(), 16);
        assert_eq!(brought(&mut turns, OwnerKey([1, 2, 100]), 0), 8);
        let of_principal: usize = (3..99).map(|host| brought(&mut turns, OwnerKey([1, host, host]), 0)).sum();
        assert!(turns.len() <= 32 && of_principal > 0, "{} {of_principal}", turns.len());
        assert_eq!(brought(&mut turns, alone(2), 0), 8);
        let all: usize = (3..999).map(|id| brought(&mut turns, alone(id), 0)).sum();
        assert!(turns.len() <= 64, "{} {all}", turns.len());
        // As places become free they go to who has few.
        assert_eq!((0..9).filter_map(|_| turns.pop()).count(), 9);
        assert!(brought(&mut turns, alone(1000), 0) > 0);
    }

    #[test]
    fn what_an_owner_has_is_taken_out_and_others_keep_their_turns() {
        let items = [(1, 10), (2, 20), (1, 11), (3, 30)];
        let mut turns = filled(9, &items.map(|(owner, item)| (alone(owner), item)));
        assert_eq!(turns.remove(alone(1)), [10, 11]);
        assert_eq!(turns.remove(alone(1)), []);
        assert_eq!((turns.pop(), turns.pop(), turns.pop(), turns.len()), (Some(20), Some(30), None, 0));
        assert!(turns.all.members.is_empty());
    }

    #[test]
    fn one_item_is_taken_out_and_the_turns_go_on() {
        let mut turns = filled(9, &[(alone(1), 10), (alone(1), 11), (alone(2), 20)]);
        assert_eq!(turns.take(alone(1), |item| *item == 11), Some(11));
        assert_eq!((turns.take(alone(1), |item| *item == 11), turns.take(alone(3), |_| true)), (None, None));
        assert_eq!(turns.take(alone(1), |_| true), Some(10));
        assert_eq!((turns.len(), turns.pop(), turns.pop()), (1, Some(20), None));
    }
}
