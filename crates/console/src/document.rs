//! A configuration file, changed as little as possible.

use lunway_target::RenamedKey;
use toml::Value;
use toml_edit::{Array, ArrayOfTables, DocumentMut, InlineTable, Item, Key, Table, TableLike, TomlError};

/// The keys that name an element of a list, where one has them: elements are the same if these are.
const NAMES: [&str; 4] = ["name", "id", "user", "tag"];

/// Brings the text of a file from one state to another: what is the same in `before` and `after` keeps its bytes,
/// comments and order; what differs is changed, removed, or appended where it belongs.
///
/// `before` is what `text` means, with every default filled in, and `after` what it shall mean. So a default that
/// was not written stays unwritten, and a key that the file spells in its own way (`LISTEN` addresses without a port,
/// names in capitals, a key by its old name) stays spelled so until its value changes. Elements of lists are matched by
/// what names them, not by their place.
///
/// Fails only if `text` is no TOML.
pub(crate) fn rewrite(text: &str, before: &toml::Table, after: &toml::Table) -> Result<String, TomlError> {
    let mut document = text.parse::<DocumentMut>()?;
    edit_table(document.as_table_mut(), before, after);
    Ok(document.to_string())
}

fn edit_table(place: &mut dyn TableLike, before: &toml::Table, after: &toml::Table) {
    for key in before.keys().filter(|key| !after.contains_key(*key)) {
        place.remove(key);
    }
    for (key, wanted) in after {
        let known = before.get(key);
        if known == Some(wanted) {
            continue;
        }
        // Under both names it could not be read.
        if let Some(renamed) = RenamedKey::ALL.iter().find(|renamed| renamed.new == key) {
            rename(place, renamed.old, renamed.new);
        }
        if !edit_item(place.get_mut(key), known, wanted) {
            // What was there only by default comes as the difference to the default.
            let new = match (known, wanted) {
                (Some(Value::Table(known)), Value::Table(wanted)) => {
                    let mut table = Table::new();
                    edit_table(&mut table, known, wanted);
                    Item::Table(table)
                }
                _ => item(wanted),
            };
            place.insert(key, new);
        }
    }
}

/// Gives a key another name, if it is there. Its place and its comments stay.
fn rename(place: &mut dyn TableLike, old: &str, new: &str) {
    if !place.contains_key(old) {
        return;
    }
    let keys: Vec<Key> = place.iter().filter_map(|(key, _)| place.key(key).cloned()).collect();
    // All are taken out and put back in turn: a table appends.
    for key in keys {
        let Some(item) = place.remove(key.get()) else { continue };
        let key = if key.get() == old {
            Key::new(new)
                .with_leaf_decor(key.leaf_decor().clone())
                .with_dotted_decor(key.dotted_decor().clone())
        } else {
            key
        };
        place.entry_format(&key).or_insert(item);
    }
}

/// Changes what is there; `false` if that cannot be done in place.
fn edit_item(place: Option<&mut Item>, before: Option<&Value>, after: &Value) -> bool {
    let Some(place) = place else { return false };
    match (place, before, after) {
        (place, Some(Value::Table(before)), Value::Table(after)) => match place.as_table_like_mut() {
            Some(table) => edit_table(table, before, after),
            None => return false,
        },
        (Item::ArrayOfTables(place), Some(Value::Array(before)), Value::Array(after))
            if !after.is_empty() =>
        {
            edit_list(place, before, after);
        }
        (Item::Value(toml_edit::Value::Array(place)), Some(Value::Array(before)), Value::Array(after)) => {
            edit_list(place, before, after);
        }
        (Item::Value(place), _, after) if !after.is_table() => {
            let decor = place.decor().clone();
            *place = value(after);
            *place.decor_mut() = decor;
        }
        _ => return false,
    }
    true
}

/// A list in either of its spellings: `[[key]]`, or `key = […]`.
trait List {
    fn len(&self) -> usize;
    fn remove(&mut self, index: usize);
    fn push(&mut self, element: &Value);
    /// Changes an element in place; `false` if it cannot be.
    fn edit(&mut self, index: usize, before: &toml::Table, after: &toml::Table) -> bool;
}

/// Edits a list whose elements are `before`, place by place.
fn edit_list(place: &mut dyn List, before: &[Value], after: &[Value]) {
    let rewrite = |place: &mut dyn List| {
        (0..place.len()).rev().for_each(|index| place.remove(index));
        after.iter().for_each(|element| place.push(element));
    };
    if place.len() != before.len() {
        return rewrite(place);
    }
    // The elements that stay must stand in the order they have, and the new ones behind them.
    let sources: Vec<Option<usize>> =
        after.iter().map(|wanted| before.iter().position(|known| is_same(known, wanted))).collect();
    let kept: Vec<usize> = sources.iter().map_while(|source| *source).collect();
    let new = &sources[kept.len()..];
    if !kept.is_sorted_by(|a, b| a < b) || new.iter().any(Option::is_some) {
        return rewrite(place);
    }
    for (index, wanted) in kept.iter().zip(after) {
        if let (Value::Table(known), Value::Table(wanted)) = (&before[*index], wanted)
            && known != wanted
            && !place.edit(*index, known, wanted)
        {
            return rewrite(place);
        }
    }
    (0..before.len()).rev().filter(|index| !kept.contains(index)).for_each(|index| place.remove(index));
    after[kept.len()..].iter().for_each(|element| place.push(element));
}

fn is_same(known: &Value, wanted: &Value) -> bool {
    match (known, wanted) {
        (Value::Table(known), Value::Table(wanted)) => {
            match NAMES.iter().find(|name| known.contains_key(**name)) {
                Some(name) => known.get(*name) == wanted.get(*name),
                None => known == wanted,
            }
        }
        _ => known == wanted,
    }
}

impl List for ArrayOfTables {
    fn len(&self) -> usize {
        ArrayOfTables::len(self)
    }

    fn remove(&mut self, index: usize) {
        ArrayOfTables::remove(self, index);
    }

    fn push(&mut self, element: &Value) {
        if let Value::Table(element) = element {
            ArrayOfTables::push(self, table(element));
        }
    }

    fn edit(&mut self, index: usize, before: &toml::Table, after: &toml::Table) -> bool {
        let place = self.get_mut(index);
        place.map(|place| edit_table(place, before, after)).is_some()
    }
}

impl List for Array {
    fn len(&self) -> usize {
        Array::len(self)
    }

    fn remove(&mut self, index: usize) {
        Array::remove(self, index);
    }

    fn push(&mut self, element: &Value) {
        Array::push(self, value(element));
    }

    fn edit(&mut self, index: usize, before: &toml::Table, after: &toml::Table) -> bool {
        let place = self.get_mut(index).and_then(toml_edit::Value::as_inline_table_mut);
        place.map(|place| edit_table(place, before, after)).is_some()
    }
}

/// A new item, spelled as people would: tables under a heading, lists of tables as `[[key]]`.
fn item(new: &Value) -> Item {
    match new {
        Value::Table(new) => Item::Table(table(new)),
        Value::Array(elements) if !elements.is_empty() && elements.iter().all(Value::is_table) => {
            Item::ArrayOfTables(elements.iter().filter_map(Value::as_table).map(table).collect())
        }
        new => Item::Value(value(new)),
    }
}

fn table(new: &toml::Table) -> Table {
    // Headings come after plain keys, which would else belong to the heading before them.
    let (plain, headed): (Vec<_>, Vec<_>) =
        new.iter().map(|(key, new)| (key, item(new))).partition(|(_, item)| item.is_value());
    let mut table = Table::new();
    for (key, item) in plain.into_iter().chain(headed) {
        table.insert(key, item);
    }
    table
}

fn value(new: &Value) -> toml_edit::Value {
    match new {
        Value::String(text) => text.into(),
        Value::Integer(number) => (*number).into(),
        Value::Float(number) => (*number).into(),
        Value::Boolean(truth) => (*truth).into(),
        Value::Datetime(time) => time.to_string().into(),
        Value::Array(elements) => toml_edit::Value::Array(elements.iter().map(value).collect()),
        Value::Table(new) => {
            let pairs = new.iter().map(|(key, new)| (key.as_str(), value(new)));
            toml_edit::Value::InlineTable(pairs.collect::<InlineTable>())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = "\
# The rack in the cellar.
listen = [
    \"10.0.0.1\",        # the old card
    \"10.0.0.2\",        # the new one
]

[limits]
sessions = 7             # more would not fit

# Everybody's disks.
[[target]]
name = \"iqn.2026-11.com.example:a\"   # never change this
alias = \"first\"

[[target.lun]]           # the system
id = 0
device = \"a.img\"

[[target.lun]]           # scratch
id = 1
device = \"ram:1G\"

# For the backup.
[[target]]
name = \"iqn.2026-11.com.example:b\"
lun = [{ id = 5, device = \"b.img\" }, { id = 6, device = \"c.img\" }]
";

    fn parse(text: &str) -> toml::Table {
        text.parse().unwrap()
    }

    /// The file after `edit`, checked to mean what it should.
    fn after(edit: impl FnOnce(&mut toml::Table)) -> String {
        let before = parse(FILE);
        let mut wanted = before.clone();
        edit(&mut wanted);
        let text = rewrite(FILE, &before, &wanted).unwrap();
        assert_eq!(parse(&text), wanted, "{text}");
        text
    }

    fn targets(table: &mut toml::Table) -> &mut Vec<Value> {
        table["target"].as_array_mut().unwrap()
    }

    fn luns(target: &mut Value) -> &mut Vec<Value> {
        target["lun"].as_array_mut().unwrap()
    }

    #[test]
    fn nothing_changed_leaves_every_byte() {
        assert_eq!(after(|_| {}), FILE);
    }

    #[test]
    fn a_changed_value_keeps_its_comment_and_its_neighbours() {
        let text = after(|table| table["limits"]["sessions"] = 9.into());
        assert_eq!(text, FILE.replace("sessions = 7 ", "sessions = 9 "));
        let text = after(|table| luns(&mut targets(table)[0])[1]["device"] = "ram:2G".into());
        assert_eq!(text, FILE.replace("ram:1G", "ram:2G"));
        let text = after(|table| luns(&mut targets(table)[1])[1]["device"] = "d.img".into());
        assert_eq!(text, FILE.replace("c.img", "d.img"));
    }

    #[test]
    fn a_removed_element_takes_only_itself() {
        let text = after(|table| drop(luns(&mut targets(table)[0]).remove(0)));
        assert!(text.contains("# scratch") && !text.contains("# the system"), "{text}");
        let text = after(|table| drop(targets(table).remove(0)));
        assert!(text.contains("# For the backup.") && !text.contains("# Everybody's disks."), "{text}");
        let text = after(|table| drop(table["listen"].as_array_mut().unwrap().remove(1)));
        assert!(text.contains("10.0.0.1") && text.contains("# The rack"), "{text}");
        after(|table| targets(table).clear());
        after(|table| luns(&mut targets(table)[1]).clear());
    }

    #[test]
    fn a_new_element_stands_with_its_kind() {
        let text = after(|table| {
            luns(&mut targets(table)[0]).push(parse("id = 2\ndevice = \"ram:3G\"").into());
        });
        assert_eq!(
            text,
            FILE.replace("ram:1G\"\n", "ram:1G\"\n\n[[target.lun]]\nid = 2\ndevice = \"ram:3G\"\n")
        );
        after(|table| luns(&mut targets(table)[1]).push(parse("id = 2\ndevice = \"x\"").into()));
        let new =
            "name = \"iqn.2026-11.com.example:c\"\n[[lun]]\nid = 0\ndevice = \"x\"\n[[chap]]\nuser = \"u\"";
        let text = after(|table| targets(table).push(parse(new).into()));
        assert!(text.starts_with(FILE), "{text}");
    }

    #[test]
    fn what_is_default_stays_unwritten_and_what_is_no_longer_comes_alone() {
        let before =
            parse("[limits]\nsessions = 256\npoll = \"50us\"\n[[target]]\nname = \"a\"\nenabled = true\n");
        let text = "# bare\n[[target]]\nname = \"A\"   # in capitals\n";
        assert_eq!(rewrite(text, &before, &before).unwrap(), text);
        let mut after = before.clone();
        after["limits"]["sessions"] = 9.into();
        let text = rewrite(text, &before, &after).unwrap();
        assert_eq!(parse(&text), parse("limits.sessions = 9\n[[target]]\nname = \"A\""), "{text}");
        assert!(text.contains("# in capitals"), "{text}");
    }

    #[test]
    fn an_old_name_stays_until_its_value_changes_and_is_then_replaced_by_the_new_one_in_its_place() {
        let before = parse("limits.sessions = 7\nlimits.poll = \"50us\"\nlimits.login_timeout = \"5s\"\n");
        for text in [
            "[limits] # ours\n# why\npoll_us = 50 # micro\nsessions = 7\nlogin_timeout_s = 5 # slow\n\n[[target]] # a\n",
            "limits = { poll_us = 50, sessions = 7, login_timeout_s = 5 }\n",
            "limits.poll_us = 50 # micro\nlimits.sessions = 7\nlimits.login_timeout_s = 5\n",
        ] {
            let mut after = before.clone();
            after["limits"]["sessions"] = 9.into();
            let written = rewrite(text, &before, &after).unwrap();
            assert_eq!(written, text.replace("sessions = 7", "sessions = 9"));
            after["limits"]["poll"] = "0s".into();
            let written = rewrite(text, &before, &after).unwrap();
            let expected =
                text.replace("sessions = 7", "sessions = 9").replace("poll_us = 50", "poll = \"0s\"");
            assert_eq!(written, expected);
        }
    }

    #[test]
    fn another_order_is_written_where_the_order_has_a_meaning() {
        let acl = "[[target]]\nname = \"a\"\n[[target.acl]]\nfrom = [\"10.0.0.1\"]\ndeny = true\n[[target.acl]]\nread_only = true\n";
        let before = parse(acl);
        let mut wanted = before.clone();
        targets(&mut wanted)[0]["acl"].as_array_mut().unwrap().reverse();
        assert_eq!(parse(&rewrite(acl, &before, &wanted).unwrap()), wanted);
        targets(&mut wanted)[0]["acl"].as_array_mut().unwrap().insert(1, parse("users = [\"u\"]").into());
        assert_eq!(parse(&rewrite(acl, &before, &wanted).unwrap()), wanted);
    }

    #[test]
    fn a_file_that_is_no_toml_is_not_touched() {
        assert!(rewrite("listen = [", &toml::Table::new(), &toml::Table::new()).is_err());
    }
}
