# What `make help` prints of a Makefile: the targets in `first` with their texts, then each group, which begins at a line
# "##@ NAME". Of the groups only the names are printed, unless `all` is set.
BEGIN { FS = ":.*## " }

/^##@ / { titles[++count] = substr($0, 5) }

/^[a-z0-9-]+:.*## / {
    text[$1] = substr($0, index($0, "## ") + 3)
    if ($1 != "help" && !index(" " first " ", " " $1 " ")) members[count] = members[count] " " $1
}

# Words behind `row`, in rows of at most 80 columns that begin at column `indent`.
function show(row, indent, text,    words, number, at) {
    number = split(text, words, " ")
    row = sprintf("%-" indent "s", row)
    for (at = 1; at <= number; at++) {
        if (length(row) + length(words[at]) + 1 > 80) { print row; row = sprintf("%" indent "s", "") }
        row = row " " words[at]
    }
    print row
}

function list(names,    each, number, at) {
    number = split(names, each, " ")
    for (at = 1; at <= number; at++) show("  " each[at], 17, text[each[at]])
}

END {
    list(first)
    for (number = 1; number <= count; number++) {
        if (all) { print "\n" titles[number] ":"; list(members[number]) }
        else { if (number == 1) print ""; show(titles[number] ":", 17, members[number]) }
    }
    if (!all) print "\nmake help ARGS=all describes all of them."
}
