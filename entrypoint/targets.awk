# What `make help` prints of a Makefile: the targets in `first`, then each group below its heading, a line "##@ NAME".
BEGIN { FS = ":.*## " }

/^##@ / { title = substr($0, 5) }

/^[a-z0-9-]+:.*## / {
    text[$1] = substr($0, index($0, "## ") + 3)
    if ($1 == "help" || index(" " first " ", " " $1 " ")) next
    if (!(title in members)) titles[++count] = title
    members[title] = members[title] " " $1
}

# A target with its text, in rows of at most 80 columns.
function show(name,    words, number, at, row) {
    row = sprintf("  %-14s", name)
    number = split(text[name], words, " ")
    for (at = 1; at <= number; at++) {
        if (length(row) + length(words[at]) + 1 > 80) { print row; row = sprintf("%16s", "") }
        row = row " " words[at]
    }
    print row
}

function list(names,    each, number, at) {
    number = split(names, each, " ")
    for (at = 1; at <= number; at++) show(each[at])
}

END {
    list(first)
    for (number = 1; number <= count; number++) { print "\n" titles[number] ":"; list(members[titles[number]]) }
}
