/** The lines that differ between two texts, in the whole text or with a few lines around them. */
import { t } from '../../strings'
import { diff, near } from './diff'

export function Difference({ before, after, around = Infinity }: { before: string; after: string; around?: number }) {
  const found = diff(before, after)
  if (found.every((line) => line.kind === ' ')) return <div class="empty">{t.dag.sourceSame}</div>
  return (
    <>
      {(around === Infinity ? found : near(found, around)).map((line, at) =>
        typeof line === 'number' ? (
          <div key={at} class="source-gap dim">{t.compare.unchanged(line)}</div>
        ) : (
          <div key={at} class={line.kind === '+' ? 'added' : line.kind === '-' ? 'removed' : ''}>
            <span class="source-no">{line.before ?? ''}</span>
            <span class="source-no">{line.after ?? ''}</span>
            <span class="source-sign">{line.kind}</span>
            {line.text}
          </div>
        ),
      )}
    </>
  )
}
