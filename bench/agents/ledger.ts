// Makes `n` host calls that need neither a model nor the network.
import { chidori, defineTool, run } from "chidori:agent";

const charge = defineTool({
  name: "charge",
  description: "Charge a card",
  parameters: { type: "object", properties: { cents: { type: "integer" } }, required: ["cents"] },
  run: async (charged: { cents: number }) => {
    await chidori.log("charge", { cents: charged.cents, note: "one entry of the ledger" });
    return { receipt: "r-" + charged.cents };
  },
});

run(async (input: { n: string }) => {
  const calls = Number(input.n);
  for (let call = 1; call <= calls; call += 2) {
    const { receipt } = (await charge.run({ cents: call * 100 }, chidori)) as { receipt: string };
    if (call < calls) {
      await chidori.memory.set("order", { receipt, call, mean: 1.1 * call });
    }
  }
  return { calls };
});
