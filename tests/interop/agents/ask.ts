import { chidori, run } from "chidori:agent";

run(async (input: { world: string }) => {
  await chidori.log("asking");
  const answer = await chidori.input("Ship it?", { type: "approval", choices: ["yes", "no"] });
  if (answer === "yes") await fetch(`${input.world}/effects/1`, { method: "POST" });
  await chidori.log("answered", { answer });
  return { shipped: answer === "yes" };
});
