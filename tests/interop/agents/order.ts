import { chidori, defineTool, run } from "chidori:agent";

// Two host calls an item, with text and numbers that a careless store would change.
const pack = defineTool({
  name: "pack",
  description: "Pack an item",
  parameters: { type: "object", properties: { item: { type: "integer" } }, required: ["item"] },
  run: async (asked: { item: number }) => {
    await chidori.log("packed", { item: asked.item, label: "naïve “quote” 😀 \u2028 \u0000 end" });
    return { parcel: "p-" + asked.item };
  },
});

run(async (input: { items: string }) => {
  const parcels: string[] = [];
  for (let item = 1; item <= Number(input.items); item++) {
    const packed = (await pack.run({ item }, chidori)) as { parcel: string };
    parcels.push(packed.parcel);
    await chidori.memory.set("parcels", { parcels, weight: 0.1 * item, far: item * 2 ** 48 });
  }
  return { parcels };
});
