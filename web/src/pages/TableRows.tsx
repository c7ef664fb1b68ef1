/** The rows of a table over its versions. */
import type { components } from '../api/schema'
import { Chart } from '../charts/Chart'
import { compact } from '../format'
import { t } from '../strings'

export default function TableRows({ versions }: { versions: readonly components['schemas']['TableVersion'][] }) {
  const known = versions.filter((one) => one.rows !== null && one.published_at).reverse()
  return <Chart label={t.tables.rowsOverTime} height={180} times={known.map((one) => Date.parse(one.published_at!) / 1000)} format={(value) => compact(Math.round(value))} lines={[{ label: t.tables.rows, color: '--s-running', values: known.map((one) => one.rows), kind: 'step', fill: true }]} />
}
